// Speed in one headless browser: `node tests/bench.mjs`. Medians of five, prompts that no state serves.

import { readFileSync, readdirSync } from 'node:fs';
import { blank, browser, server } from './harness.mjs';
import { synthetic } from './synthetic.mjs';

const RUNS = Number(process.env.RUNS ?? 5);
const median = (values) => values.sort((a, b) => a - b)[Math.floor(values.length / 2)];

const [web, chrome] = [await server(), await browser()];

/** CPU seconds that the browser's processes have used, where the system tells. */
function cpuSeconds() {
  const processes = new Map();
  for (const id of readdirSync('/proc').filter((name) => /^\d+$/.test(name))) {
    try {
      // Fields after the name, which may hold spaces: state, parent, ..., user and system ticks of 10 ms.
      const fields = readFileSync(`/proc/${id}/stat`, 'utf8').split(') ').pop().split(' ');
      processes.set(id, { parent: fields[1], ticks: Number(fields[11]) + Number(fields[12]) });
    } catch {
      // It ended meanwhile.
    }
  }
  const ours = (id) => id === String(process.pid) || (processes.has(id) && id !== '1' && ours(processes.get(id).parent));
  return [...processes].filter(([id]) => id !== String(process.pid) && ours(id)).reduce((sum, [, { ticks }]) => sum + ticks / 100, 0);
}

/** Counts dispatches and the time that the worker spends in calls of the module, from inside the worker. */
const COUNTER = `
  globalThis.counts = { dispatches: 0, submits: 0, readbacks: 0 };
  for (const [type, method, name] of [[GPUComputePassEncoder, 'dispatchWorkgroups', 'dispatches'], [GPUQueue, 'submit', 'submits'], [GPUBuffer, 'mapAsync', 'readbacks']]) {
    const plain = type.prototype[method];
    type.prototype[method] = function (...args) { counts[name] += 1; return plain.apply(this, args); };
  }`;

async function measure(model, backend, { prefill, decode }) {
  const page = await blank(chrome, web.origin);
  const arrived = page.waitForEvent('worker');
  const opening = page.evaluate(async ([url, where]) => {
    const start = performance.now();
    window.session = await window.whipsnake.openModel(url, { backend: where, cache: false });
    return { seconds: (performance.now() - start) / 1000, wasm: window.session.about.loading.wasmBytes };
  }, [model, backend]);
  const worker = await arrived;
  const { seconds, wasm } = await opening;
  if (backend === 'webgpu') await worker.evaluate(COUNTER);
  const figures = { prefill: [], decode: [] };
  const words = 'the and of to my in that is not with you it be this his your but have for as ';
  for (let run = 0; run <= RUNS; run += 1) {
    const [usage] = await page.evaluate(async ([text, tokens, count, again]) => {
      // Each run begins with another word, so that the state of the last one does not serve it.
      let prompt = ['Lord', 'Lady', 'King', 'Queen', 'Sir', 'Duke', 'Prince', 'Friar'][again % 8];
      while ((await window.session.encode(prompt)).length < tokens) prompt += text.slice(prompt.length % 40, (prompt.length % 40) + 4);
      const reply = await window.whipsnake.all(window.session, prompt, { greedy: true, maxTokens: count, ignoreEnd: true });
      return [reply.usage];
    }, [words, prefill, decode, run]);
    // The first run compiles.
    if (run === 0) continue;
    figures.prefill.push(usage.prefill_tokens_per_second);
    if (usage.decode_tokens_per_second) figures.decode.push(usage.decode_tokens_per_second);
  }
  // What a token costs: CPU time of all of the browser, and what the worker sends.
  const counts = () => (backend === 'webgpu' ? worker.evaluate('({...counts})') : {});
  const write = (prompt, count) => page.evaluate(([text, most]) => window.whipsnake.all(window.session, text, { greedy: true, maxTokens: most, ignoreEnd: true }), [prompt, count]);
  let [before, start] = [await counts(), cpuSeconds()];
  const long = await write(`Hark ${words.repeat(Math.ceil(prefill / 20))}`, 1);
  const prefillMs = ((cpuSeconds() - start) * 1000) / long.usage.prefill_tokens;
  await write('Once more', 1);
  [before, start] = [await counts(), cpuSeconds()];
  await write('Once again', decode);
  const decodeMs = ((cpuSeconds() - start) * 1000) / decode;
  const after = await counts();
  const each = (name) => ((after[name] - before[name]) / decode).toFixed(1);
  let cost = `; CPU ${prefillMs.toFixed(2)} ms a token of a prompt of ${long.usage.prefill_tokens}, ${decodeMs.toFixed(2)} ms a token written`;
  if (backend === 'webgpu') cost += `, ${each('dispatches')} dispatches, ${each('submits')} submits, ${each('readbacks')} read-backs a step`;
  console.log(`${model} ${backend}: load ${seconds.toFixed(2)} s, wasm ${(wasm / 1e6).toFixed(1)} MB, prefill ${prefill} ${median(figures.prefill).toFixed(1)} tok/s, decode ${decode} ${median(figures.decode).toFixed(1)} tok/s${cost}`);
  await page.context().close();
}

await measure('/models/bard', 'webgpu', { prefill: 64, decode: 32 });
await measure('/models/bard', 'cpu', { prefill: 512, decode: 64 });
await measure('/models/bard-nvfp4', 'cpu', { prefill: 512, decode: 64 });
if (process.env.LARGE) {
  const url = await synthetic('made-365', 365);
  const page = await blank(chrome, web.origin);
  const [seconds, wasm] = await page.evaluate(async (where) => {
    const start = performance.now();
    const session = await window.whipsnake.openModel(where, { cache: false, context: 64, rows: 8 });
    const took = (performance.now() - start) / 1000;
    return [took, (await session.memory()).wasmBytes];
  }, url);
  console.log(`365 MB on webgpu: load ${seconds.toFixed(2)} s, wasm ${(wasm / 1e6).toFixed(1)} MB`);
}
await chrome.close();
web.server.close();
