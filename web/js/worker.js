// The dedicated worker: holds the wasm module and one model, answers the calls of `whipsnake.js`.
// A call is `{id, call, args}`; answers are `{id, value}` or `{id, error}`, news on the way `{id, news}`.

import init, { Model, deviceReport, selfcheck } from './wasm/whipsnake_web.js';
import { LocalFolder, RemoteFolder } from './folder.js';

/** Least time between two reports of progress. */
const REPORT_MS = 30;
/** Tokens of a prompt that needs the kernels of long ones. */
const WARM_TOKENS = 20;

let model = null;
let folder = null;
let reply = null;
/** Settles when no compiling goes on in the background. */
let warm = Promise.resolve();

const wasm = init({ module_or_path: new URL('./wasm/whipsnake_web_bg.wasm', import.meta.url) });
const memory = async () => (await wasm).memory.buffer.byteLength;

/** Lets messages of the page come in between two steps. */
const channel = new MessageChannel();
const turn = () => new Promise((done) => {
  channel.port1.onmessage = done;
  channel.port2.postMessage(null);
});

/** Runs a prompt and a token, so that the kernels of both are there. An error is for the call that meets it. */
async function compile() {
  await model.logits(new Uint32Array(WARM_TOKENS)).catch(() => {});
  await model.logits(new Uint32Array(1)).catch(() => {});
}

/** Progress as one growing picture, sent now and then. */
function reporter(send) {
  const state = { received: 0, cached: 0, total: 0, tensor: '', tensors: 0, loaded: 0 };
  let last = 0;
  return (change, always = false) => {
    Object.assign(state, change);
    const now = performance.now();
    if (!always && now - last < REPORT_MS) return;
    last = now;
    send({ ...state });
  };
}

const calls = {
  async open({ source, options, cache, warmUp }, send) {
    if (model) throw new Error('this worker holds a model already');
    const report = reporter(send);
    const onBytes = ({ received, cached, total }) => report({ received, cached, total });
    folder = typeof source === 'string' ? new RemoteFolder(source, { cache, onBytes }) : await LocalFolder.of(source, onBytes);
    let tensors = 0;
    const onTensor = (text) => {
      tensors += 1;
      const { tensor, loaded } = JSON.parse(text);
      report({ tensor, tensors, loaded });
    };
    try {
      model = await Model.open(folder, JSON.stringify(options), onTensor);
      report({ received: folder.received, cached: folder.cached, total: folder.total }, true);
      const { received, cached, notes } = folder;
      const loading = { received, cached, notes, hashes: await folder.hashes(), held: JSON.parse(model.memory()), wasmBytes: await memory() };
      // Behind the answer to this call, so that the page has the model meanwhile.
      if (warmUp && options.backend !== 'cpu') warm = turn().then(compile);
      return { ...JSON.parse(model.about()), loading };
    } finally {
      folder.close();
    }
  },

  async generate(request, send) {
    model.start(JSON.stringify(request));
    const mine = (reply = { stop: false });
    for (;;) {
      const items = JSON.parse(mine.stop ? model.cancel() : await model.step());
      if (items.length > 0) send(items);
      const last = items.at(-1);
      if (last?.type === 'done') return null;
      await turn();
    }
  },

  async stop() {
    if (reply) reply.stop = true;
  },

  logits: ({ tokens }) => model.logits(tokens),
  encode: async ({ text }) => model.encode(text),
  memory: async () => ({ device: JSON.parse(model.memory()), wasmBytes: await memory() }),

  async deviceReport() {
    const reports = JSON.parse(await deviceReport());
    const { vendor, architecture, device, description } = (await navigator.gpu?.requestAdapter({ powerPreference: 'high-performance' }))?.info ?? {};
    return reports.map((report) => ({ ...report, vendor, architecture, device, description }));
  },

  async selfcheck({ backend, filter }, send) {
    return JSON.parse(await selfcheck(backend, filter, (text) => send(JSON.parse(text))));
  },
};

onmessage = async ({ data: { id, call, args } }) => {
  try {
    await wasm;
    if (call !== 'stop') await warm;
    const value = await calls[call](args, (news) => postMessage({ id, news }));
    postMessage({ id, value });
  } catch (error) {
    const stopped = error instanceof WebAssembly.RuntimeError;
    const message = stopped ? `the wasm module stopped (${error.message}); open the model again` : (error.message ?? String(error));
    postMessage({ id, error: { name: error.name, message } });
  }
};
