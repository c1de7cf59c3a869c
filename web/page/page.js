// The page: opens models, and connects the controls.

import { deviceReport, openModel, selfcheck } from './whipsnake.js';
import { $, bytes, showDevice, showMemory, showModel, showRates } from './panel.js';
import { Talk } from './talk.js';

const DEFAULT_MODEL = 'models/bard';
const talk = new Talk();
const wanted = new URLSearchParams(location.search);
let last = { source: wanted.get('model') ?? DEFAULT_MODEL, name: '' };
let opening = 0;
let checking = null;

function notice(text, { cpu = false, retry = false } = {}) {
  $('notice').hidden = !text;
  $('notice-text').textContent = text;
  $('use-cpu').hidden = !cpu;
  $('retry').hidden = !retry;
}

function controls() {
  const ready = talk.session !== null;
  $('input').disabled = !ready || !talk.session.about.text;
  $('send').disabled = $('input').disabled || talk.busy;
  $('stop').disabled = !talk.busy;
  $('clear').disabled = talk.busy;
}

function progress({ received, cached, total, tensor, tensors }) {
  $('load-bar').value = total ? Math.min((received + cached) / total, 1) : 0;
  $('load-text').textContent = `Loading ${bytes(received + cached)}${total ? ` of ${bytes(total)}` : ''}${cached ? `, ${bytes(cached)} from the cache` : ''}`;
  $('load-detail').textContent = tensors ? `${tensors} tensors · ${tensor}` : 'Reading the headers';
}

/** Opens a model in the place of the last one. */
async function open(source, name) {
  const mine = ++opening;
  last = { source, name };
  talk.session?.close();
  talk.session = null;
  document.body.classList.remove('loaded');
  talk.busy = false;
  talk.clear();
  notice('');
  $('badge').hidden = true;
  $('model-line').textContent = name;
  $('loading').hidden = false;
  progress({ received: 0, cached: 0, total: 0, tensors: 0 });
  controls();
  const backend = $('cpu').checked ? 'cpu' : 'webgpu';
  document.body.dataset.state = 'loading';
  try {
    const reports = await deviceReport();
    showDevice(null, reports);
    if (backend === 'webgpu' && reports.length === 0) {
      throw Object.assign(new Error('This browser offers no WebGPU adapter. A current Chrome, Edge, Firefox or Safari has one, over https or localhost. The CPU can run the model instead, several times slower on most machines.'), { missing: true });
    }
    const session = await openModel(source, { backend, warmUp: true, onProgress: (step) => mine === opening && progress(step) });
    if (mine !== opening) return session.close();
    loaded(session, name, reports);
  } catch (error) {
    if (mine !== opening) return;
    document.body.dataset.state = error.missing ? 'missing' : 'failed';
    notice(error.message, { cpu: error.missing || error.name === 'DeviceError', retry: !error.missing });
  } finally {
    if (mine === opening) $('loading').hidden = true;
    controls();
  }
}

function loaded(session, name, reports) {
  talk.session = session;
  document.body.classList.add('loaded');
  const { about } = session;
  showModel(about);
  showDevice(about, reports);
  showMemory(about.plan, about.loading.held, about.loading.wasmBytes);
  showRates(null);
  $('badge').hidden = false;
  $('badge').textContent = about.backend === 'cpu' ? 'CPU' : `WebGPU${about.device.kind === 'software' ? ', in software' : ''}`;
  $('badge').classList.toggle('cpu', about.backend === 'cpu');
  for (const [id, key] of [['temperature', 'temperature'], ['topP', 'top_p'], ['topK', 'top_k'], ['minP', 'min_p']]) {
    $(id).value = about.defaults ? Number(about.defaults[key].toFixed(3)) : '';
  }
  const mode = about.chat ? 'chat' : 'prompt';
  document.querySelector(`[name="mode"][value="${mode}"]`).checked = true;
  document.querySelector('[name="mode"][value="chat"]').disabled = !about.chat;
  modes();
  if (!about.text) notice('This checkpoint has no tokenizer.json, so it cannot read text.');
  document.body.dataset.state = 'ready';
}

function modes() {
  const chat = talk.mode === 'chat';
  $('reasoning-label').hidden = !chat;
  $('input').placeholder = chat ? 'Say something' : 'Text to write on from';
  talk.clear();
}

async function say() {
  const text = talk.mode === 'chat' ? $('input').value.trim() : $('input').value;
  if (!text || talk.busy || !talk.session) return;
  $('input').value = '';
  const { session } = talk;
  const written = talk.say(text);
  controls();
  try {
    await written;
  } catch (error) {
    if (session !== talk.session) return;
    notice(error.message, { retry: error.name !== 'RequestError' && error.name !== 'TextError', cpu: error.name === 'DeviceError' });
    document.body.dataset.state = 'failed';
    $('speed').textContent = '';
  } finally {
    controls();
  }
}

/** Runs the self-check on the back end that is in use. */
async function check() {
  const stop = (checking = new AbortController());
  const counts = { passed: 0, failed: 0 };
  $('check').disabled = true;
  $('check-stop').disabled = false;
  $('check-bar').hidden = false;
  $('check-bar').removeAttribute('value');
  $('check-faults').replaceChildren();
  const show = (now) => ($('check-text').textContent = `${counts.passed} passed, ${counts.failed} failed${now}`);
  const onOutcome = ({ op, case: name, fault }) => {
    counts[fault ? 'failed' : 'passed'] += 1;
    show(` · ${op}`);
    if (fault) $('check-faults').append(Object.assign(document.createElement('li'), { textContent: `${op} ${name}: ${fault}` }));
  };
  try {
    const backend = talk.session?.about.backend === 'cpu' || $('cpu').checked ? 'cpu' : 'webgpu';
    await selfcheck({ backend, filter: wanted.get('check') ?? '', onOutcome, signal: stop.signal });
    show(counts.failed ? '' : ': this device computes what the reference does');
  } catch (error) {
    show(` · ${error.message}`);
  } finally {
    checking = null;
    $('check').disabled = false;
    $('check-stop').disabled = true;
    $('check-bar').hidden = true;
  }
}

/** What was dropped: a folder's handle where the browser gives one, else its files. */
async function dropped(transfer) {
  const item = transfer.items[0];
  const handle = await item?.getAsFileSystemHandle?.();
  if (handle?.kind === 'directory') return open(handle, handle.name);
  const entry = item?.webkitGetAsEntry?.();
  if (!entry?.isDirectory) return open([...transfer.files], 'dropped files');
  const entries = await new Promise((done, fail) => entry.createReader().readEntries(done, fail));
  const files = entries.filter((e) => e.isFile).map((e) => new Promise((done, fail) => e.file(done, fail)));
  return open(await Promise.all(files), entry.name);
}

$('form').onsubmit = (event) => {
  event.preventDefault();
  say();
};
$('input').onkeydown = (event) => {
  if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    say();
  }
};
addEventListener('keydown', (event) => event.key === 'Escape' && talk.busy && talk.session.stop());
$('stop').onclick = () => talk.session?.stop();
$('clear').onclick = () => talk.clear();
document.querySelectorAll('[name="mode"]').forEach((radio) => (radio.onchange = modes));
$('source').onsubmit = (event) => {
  event.preventDefault();
  open($('url').value, $('url').value);
};
$('pick').onclick = async () => {
  if (!self.showDirectoryPicker) return $('files').click();
  const handle = await showDirectoryPicker({ id: 'model' }).catch(() => null);
  if (handle) open(handle, handle.name);
};
$('files').onchange = () => open([...$('files').files], $('files').files[0]?.webkitRelativePath.split('/')[0] ?? 'files');
$('cpu').onchange = () => open(last.source, last.name);
$('retry').onclick = () => open(last.source, last.name);
$('use-cpu').onclick = () => {
  $('cpu').checked = true;
  open(last.source, last.name);
};
$('check').onclick = check;
$('check-stop').onclick = () => checking?.abort();
$('theme').onclick = () => {
  const dark = getComputedStyle(document.documentElement).colorScheme === 'dark' || (!document.documentElement.dataset.theme && matchMedia('(prefers-color-scheme: dark)').matches);
  document.documentElement.dataset.theme = dark ? 'light' : 'dark';
};
addEventListener('dragover', (event) => {
  event.preventDefault();
  $('drop').hidden = false;
});
addEventListener('dragleave', (event) => event.relatedTarget === null && ($('drop').hidden = true));
addEventListener('drop', (event) => {
  event.preventDefault();
  $('drop').hidden = true;
  dropped(event.dataTransfer);
});

$('cpu').checked = wanted.get('backend') === 'cpu';
$('url').value = last.source;
showRates(null);
open(last.source, last.source);
