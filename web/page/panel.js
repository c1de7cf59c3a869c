// The panel beside the text: what is loaded, on what, and what it takes.

import { Plot } from './plot.js';

/** What the ledger's short words mean. */
const LEDGER = { kv: 'keys and values' };

export const $ = (id) => document.getElementById(id);

const NAMES = { mamba2: ['M', 'Mamba2'], attention: ['A', 'attention'], mlp: ['F', 'feed-forward'], moe: ['E', 'experts'] };

export function bytes(count) {
  const units = ['B', 'KiB', 'MiB', 'GiB'];
  let unit = 0;
  let value = count;
  while (value >= 1024 && unit < 3) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 || value >= 100 ? value.toFixed(0) : value.toFixed(1)} ${units[unit]}`;
}

export function rate(value) {
  if (value === null || value === undefined) return '–';
  return `${value >= 10 ? Math.round(value).toLocaleString('en') : value.toFixed(1)} tok/s`;
}

function element(tag, text, props = {}) {
  return Object.assign(document.createElement(tag), { textContent: text, ...props });
}

/** Fills a list of terms and values. */
function terms(list, pairs) {
  list.replaceChildren(...pairs.flatMap(([term, value]) => [element('dt', term), element('dd', value)]));
}

export function showModel(about) {
  const cells = about.layers.map(({ kinds, bytes: size }, index) => {
    const [letter, name] = NAMES[kinds[0]];
    return element('span', letter, { className: kinds[0], title: `layer ${index}: ${kinds.map((k) => NAMES[k][1]).join(' and ') || name}, ${bytes(size)}` });
  });
  $('layers').replaceChildren(...cells);
  const kinds = [...new Set(about.layers.flatMap((layer) => layer.kinds))];
  const count = (kind) => about.layers.filter((layer) => layer.kinds.includes(kind)).length;
  $('layers').setAttribute('aria-label', `${about.layers.length} layers: ${kinds.map((k) => `${count(k)} ${NAMES[k][1]}`).join(', ')}`);
  $('legend').replaceChildren(...kinds.map((kind) => {
    const entry = element('span', '');
    entry.append(element('i', '', { className: kind }), `${count(kind)} ${NAMES[kind][1]}`);
    return entry;
  }));
  const { loading } = about;
  const hash = Object.values(loading.hashes).find(Boolean);
  terms($('facts'), [
    ['Vocabulary', about.vocabulary.toLocaleString('en')],
    ['Width', about.hidden.toLocaleString('en')],
    ['Context', `${about.context.toLocaleString('en')} tokens`],
    ['Weights', `${about.tensors} tensors, ${bytes(about.stored_bytes)}`],
    ['Fetched', bytes(loading.received)],
    ['From the cache', bytes(loading.cached)],
    ...(hash ? [['Cached, SHA-256', `${hash.slice(0, 16)}…`]] : []),
    ...loading.notes.map((note) => ['Note', note]),
  ]);
}

export function showDevice(about, reports) {
  const device = about?.device ?? null;
  const seen = reports.find((report) => report.verdict === 'chosen') ?? reports[0];
  if (!device) {
    terms($('device'), [
      ['Runs on', about ? 'CPU, one thread of wasm with SIMD' : 'nothing yet'],
      ['WebGPU', seen ? nameOf(seen) : 'no adapter'],
    ]);
    return;
  }
  const { limits, features } = device;
  const yes = (flag) => (flag ? 'yes' : 'no');
  terms($('device'), [
    ['Adapter', nameOf(seen ?? device)],
    ['Kind', device.kind],
    ['Largest buffer', bytes(limits.buffer_bytes)],
    ['Largest binding', bytes(limits.binding_bytes)],
    ['Storage buffers', limits.storage_buffers],
    ['Workgroup', `${limits.invocations} invocations, ${bytes(limits.workgroup_bytes)}`],
    ['f16 · time stamps', `${yes(features.f16)} · ${yes(features.timestamps)}`],
    ...device.variants.map((variant) => ['Variant', variant]),
  ]);
}

export function nameOf({ name, vendor, architecture, description }) {
  return [name || description, [vendor, architecture].filter(Boolean).join(' ')].filter(Boolean).join(', ') || 'unnamed adapter';
}

export function showMemory(plan, held, wasmBytes) {
  const rows = Object.keys(plan).map((name) => [LEDGER[name] ?? name, bytes(plan[name]), held ? bytes(held[name]) : '–']);
  const sum = (ledger) => bytes(Object.values(ledger).reduce((a, b) => a + b, 0));
  rows.push(['total', sum(plan), held ? sum(held) : '–'], ['wasm', '', bytes(wasmBytes)]);
  $('memory').tBodies[0].replaceChildren(...rows.map(([name, ...values]) => {
    const row = element('tr', '');
    row.append(element('th', name, { scope: 'row' }), ...values.map((value) => element('td', value)));
    return row;
  }));
}

export const plot = new Plot($('plot'), $('plot-top'));

export function showRates(usage) {
  terms($('rates'), [
    ['Prefill', usage ? `${usage.prefill_tokens} tokens, ${rate(usage.prefill_tokens_per_second)}` : '–'],
    ['State continued', usage ? `${usage.cached_tokens} tokens` : '–'],
    ['Decode', usage ? `${usage.decode_tokens} tokens, ${rate(usage.decode_tokens_per_second)}` : '–'],
  ]);
}
