// Whipsnake for web pages. The work is done in a dedicated worker; see whipsnake.d.ts for the types.

/** Options of a reply that are sampling, with the names that the module gives them. */
const SAMPLING = {
  temperature: 'temperature',
  topK: 'top_k',
  topP: 'top_p',
  minP: 'min_p',
  repetitionPenalty: 'repetition_penalty',
  presencePenalty: 'presence_penalty',
  frequencyPenalty: 'frequency_penalty',
  logitBias: 'logit_bias',
  seed: 'seed',
};

/** A worker and the calls that wait for its answers. */
class Line {
  #worker = new Worker(new URL('./worker.js', import.meta.url), { type: 'module' });
  #waiting = new Map();
  #next = 0;
  #closed = null;

  constructor() {
    this.#worker.onmessage = ({ data: { id, value, error, news } }) => {
      const call = this.#waiting.get(id);
      if (news !== undefined) return call?.onNews(news);
      this.#waiting.delete(id);
      if (error) call?.reject(Object.assign(new Error(error.message), { name: error.name }));
      else call?.resolve(value);
    };
    this.#worker.onerror = (event) => this.close(`the worker stopped: ${event.message ?? 'it could not be loaded'}`);
  }

  call(call, args = {}, onNews = () => {}) {
    if (this.#closed) return Promise.reject(new Error(this.#closed));
    const id = this.#next++;
    return new Promise((resolve, reject) => {
      this.#waiting.set(id, { resolve, reject, onNews });
      this.#worker.postMessage({ id, call, args });
    });
  }

  close(why = 'the model was closed') {
    if (this.#closed) return;
    this.#closed = why;
    this.#worker.terminate();
    for (const { reject } of this.#waiting.values()) reject(new Error(why));
    this.#waiting.clear();
  }
}

/** Runs one call in a worker of its own. */
async function once(call, args, onNews) {
  const line = new Line();
  try {
    return await line.call(call, args, onNews);
  } finally {
    line.close();
  }
}

/** The request for the module: sampling apart, and nothing that it does not know. */
function requestOf(input, { stop = [], ...options }) {
  const request = { stop, sampling: {}, now: Math.floor(Date.now() / 1000), entropy: Math.floor(Math.random() * 2 ** 53) };
  request[typeof input === 'string' ? 'prompt' : 'messages'] = input;
  for (const [name, value] of Object.entries(options)) {
    if (value === undefined || value === null) continue;
    if (name in SAMPLING) request.sampling[SAMPLING[name]] = value;
    else request[name] = value;
  }
  return request;
}

/** A model that is loaded. */
class Session {
  #line;
  about;

  constructor(line, about) {
    this.#line = line;
    this.about = about;
  }

  async *generate(input, options = {}) {
    const arrived = [];
    let wake = () => {};
    let ended = false;
    const onNews = (items) => {
      arrived.push(items);
      wake();
    };
    const finish = () => {
      ended = true;
      wake();
    };
    const reply = this.#line.call('generate', requestOf(input, options), onNews).finally(finish);
    reply.catch(() => {});
    try {
      for (;;) {
        while (arrived.length > 0) yield deltaOf(arrived.shift());
        if (ended) break;
        await new Promise((go) => (wake = go));
      }
      await reply;
    } finally {
      // Whoever leaves the loop early wants no more of it.
      if (!ended) {
        await this.stop();
        await reply.catch(() => {});
      }
    }
  }

  stop() {
    return this.#line.call('stop');
  }

  async logits(tokens) {
    const values = await this.#line.call('logits', { tokens: Uint32Array.from(tokens) });
    const { vocabulary } = this.about;
    return Array.from({ length: tokens.length }, (_, row) => values.subarray(row * vocabulary, (row + 1) * vocabulary));
  }

  async encode(text) {
    return Array.from(await this.#line.call('encode', { text }));
  }

  memory() {
    return this.#line.call('memory');
  }

  close() {
    this.#line.close();
  }
}

/** What a step made known, as one delta. */
function deltaOf(items) {
  const delta = { content: '', reasoning: '', tokens: [] };
  for (const { type, ...item } of items) {
    if (type === 'token') delta.tokens.push(item.token);
    else if (type === 'done') delta.done = item;
    else {
      delta.content += item.content;
      delta.reasoning += item.reasoning;
    }
  }
  return delta;
}

export async function openModel(source, { onProgress = () => {}, backend = 'webgpu', context, rows, cache = true, warmUp = false } = {}) {
  const line = new Line();
  try {
    const where = typeof source === 'string' || source instanceof URL ? new URL(source, document.baseURI).href : source;
    const files = where instanceof FileList ? [...where] : where;
    const options = { backend, context, rows };
    return new Session(line, await line.call('open', { source: files, options, cache, warmUp }, onProgress));
  } catch (error) {
    line.close();
    throw error;
  }
}

export function deviceReport() {
  return once('deviceReport');
}

export function selfcheck({ backend = 'webgpu', filter = '', onOutcome = () => {}, signal } = {}) {
  const line = new Line();
  const why = 'the check was stopped';
  signal?.addEventListener('abort', () => line.close(why));
  return line.call('selfcheck', { backend, filter }, onOutcome).finally(() => line.close());
}
