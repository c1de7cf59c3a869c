// The files of a checkpoint, for the wasm module: over HTTP by ranges, or local.
// Every kind of folder has `small(names)`, `names()`, `size(name)` and `read(name, start, end)`.

import { openStore } from './store.js';

/** Bytes that are fetched, kept and cached together: small tensors that lie side by side share a request. */
export const BLOCK = 1 << 20;
/** Blocks of one request at most. */
const RUN = 2;
/** Requests under way at once. */
const LANES = 6;
/** Blocks kept in memory, so that tensors which share one do not fetch or read it again. */
const KEPT = 24;
/** Times that a request is tried before its error is shown. */
const TRIES = 3;

/** Lets at most `count` tasks run at once. */
function gate(count) {
  const waiting = [];
  let free = count;
  return async (task) => {
    if (free > 0) free -= 1;
    else await new Promise((go) => waiting.push(go));
    try {
      return await task();
    } finally {
      const next = waiting.shift();
      if (next) next();
      else free += 1;
    }
  };
}

const pause = (ms) => new Promise((done) => setTimeout(done, ms));

/** One file behind a URL. */
class RemoteFile {
  constructor(url, name, folder) {
    Object.assign(this, { url, name, folder, blocks: new Map(), arriving: new Map() });
  }

  /** Learns size and identity from a request for the first bytes; false where there is no such file. */
  async open() {
    const answer = await this.ask({ headers: { Range: 'bytes=0-7' } });
    if (answer.status === 404 || answer.status === 410) return false;
    if (!answer.ok) throw new Error(`${this.name}: the server answers ${answer.status} ${answer.statusText}`.trim());
    const header = (key) => answer.headers.get(key);
    const total = /\/(\d+)$/.exec(header('content-range') ?? '');
    this.ranged = answer.status === 206;
    if (this.ranged) {
      await answer.arrayBuffer();
      this.size = total ? Number(total[1]) : await this.askSize();
    } else {
      this.size = Number(header('content-length'));
      if (!this.size || header('content-encoding')) throw new Error(`${this.name}: the server tells neither ranges nor the size of the file; serve it uncompressed`);
    }
    const version = header('etag') ?? header('last-modified');
    this.store = version && (await this.folder.store(this.url, this.size, version));
    if (!this.ranged) this.whole(answer.body.getReader());
    return true;
  }

  /** Past the browser's own cache: it would let one request for an address wait for another, and keep a second copy. */
  ask(options) {
    return this.folder.fetch(this.url, { ...options, cache: 'no-store' });
  }

  /** A server of another origin need not show the range. */
  async askSize() {
    const answer = await this.ask({ method: 'HEAD' });
    const size = Number(answer.headers.get('content-length'));
    if (!size) throw new Error(`${this.name}: the server does not tell the size of the file`);
    return size;
  }

  count() {
    return Math.ceil(this.size / BLOCK);
  }

  bytesOf(block) {
    return Math.min(this.size, (block + 1) * BLOCK) - block * BLOCK;
  }

  /** A server without ranges sends the file once, from its start; blocks wait for their turn, and all are kept. */
  whole(reader) {
    const landed = Array.from({ length: this.count() }, () => Promise.withResolvers());
    landed.forEach((slot, block) => {
      slot.promise.catch(() => {});
      this.arriving.set(block, slot.promise);
    });
    const pump = async () => {
      for (let block = 0; block < landed.length; block += 1) {
        landed[block].resolve(await this.fill(reader, block));
        if (this.store?.has(block)) this.arriving.delete(block);
      }
    };
    pump().catch((error) => landed.forEach((slot) => slot.reject(error)));
  }

  rest = new Uint8Array(0);

  async fill(reader, block) {
    const bytes = new Uint8Array(this.bytesOf(block));
    let at = 0;
    while (at < bytes.length) {
      if (this.rest.length === 0) {
        const { done, value } = await reader.read();
        if (done) throw new Error(`${this.name}: the transfer ended at byte ${block * BLOCK + at} of ${this.size}; try again`);
        this.rest = value;
      }
      const part = this.rest.subarray(0, bytes.length - at);
      bytes.set(part, at);
      at += part.length;
      this.rest = this.rest.subarray(part.length);
    }
    this.folder.count('received', bytes.length);
    await this.store?.put(block, bytes);
    return bytes;
  }

  /** Bytes `start..end`; fewer where the file ends before. */
  async read(start, end) {
    const [first, last] = [Math.floor(start / BLOCK), Math.floor((Math.min(end, this.size) - 1) / BLOCK)];
    const parts = [];
    for (let block = first; block <= last; block += 1) parts.push(this.block(block, last));
    const bytes = new Uint8Array(Math.max(0, Math.min(end, this.size) - start));
    for (const [index, data] of (await Promise.all(parts)).entries()) {
      const begin = (first + index) * BLOCK;
      const from = Math.max(start - begin, 0);
      bytes.set(data.subarray(from, Math.min(end - begin, data.length)), begin + from - start);
    }
    return bytes;
  }

  /** One block: from memory, from what is under way, from the cache, else from the server together with its neighbours. */
  block(block, last) {
    const kept = this.blocks.get(block) ?? this.arriving.get(block);
    if (kept) return kept;
    if (this.store?.has(block)) return this.keep(block, this.cached(block, last));
    return this.request(block, last);
  }

  async cached(block, last) {
    const bytes = await this.store.get(block, this.bytesOf(block));
    if (!bytes) return this.request(block, last);
    this.folder.count('cached', bytes.length);
    return bytes;
  }

  request(block, last) {
    const missing = (b) => b === block || (b <= last && !this.blocks.has(b) && !this.arriving.has(b) && !this.store?.has(b));
    let end = block;
    while (end - block < RUN && missing(end)) end += 1;
    const run = this.folder.gate(() => this.fetchRun(block, end));
    for (let b = block; b < end; b += 1) {
      const at = (b - block) * BLOCK;
      this.keep(b, run.then((bytes) => bytes.subarray(at, at + this.bytesOf(b))));
    }
    return this.blocks.get(block);
  }

  keep(block, promise) {
    promise.catch(() => this.blocks.delete(block));
    this.blocks.delete(block);
    this.blocks.set(block, promise);
    if (this.blocks.size > KEPT) this.blocks.delete(this.blocks.keys().next().value);
    return promise;
  }

  async fetchRun(first, end) {
    const [start, stop] = [first * BLOCK, Math.min(end * BLOCK, this.size)];
    const bytes = await this.range(start, stop);
    this.folder.count('received', bytes.length);
    for (let block = first; block < end && this.store; block += 1) {
      const at = (block - first) * BLOCK;
      await this.store.put(block, bytes.subarray(at, at + this.bytesOf(block)));
    }
    return bytes;
  }

  /** A range, asked for again where the transfer breaks: only what is missing, as far as the server goes. */
  async range(start, stop) {
    const bytes = new Uint8Array(stop - start);
    let at = 0;
    for (let attempt = 1; ; attempt += 1) {
      try {
        const answer = await this.ask({ headers: { Range: `bytes=${start + at}-${stop - 1}` } });
        if (answer.status === 404) throw Object.assign(new Error(`${this.name}: the file went away while it was read`), { final: true });
        if (answer.status !== 206) throw new Error(`${this.name}: the server answers ${answer.status} to a range`);
        for (const reader = answer.body.getReader(); ; ) {
          const { done, value } = await reader.read();
          if (done) break;
          bytes.set(value.subarray(0, bytes.length - at), at);
          at += Math.min(value.length, bytes.length - at);
        }
        if (at === bytes.length) return bytes;
        throw new Error(`${this.name}: bytes ${start} to ${stop} were asked for, ${at} came; the file is truncated or the connection broke`);
      } catch (error) {
        if (attempt === TRIES || error.final) throw error;
        await pause(100 * attempt);
      }
    }
  }
}

/** A folder behind a URL. */
export class RemoteFolder {
  constructor(url, { cache = true, onBytes = () => {} } = {}) {
    this.url = new URL(url.endsWith('/') ? url : `${url}/`, self.location.href);
    Object.assign(this, { cache, onBytes, files: new Map(), gate: gate(LANES), received: 0, cached: 0, notes: [] });
  }

  async fetch(url, options) {
    try {
      return await fetch(url, options);
    } catch (error) {
      throw new Error(`${url.pathname.split('/').pop()}: cannot reach ${url.host}: ${error.message}`);
    }
  }

  async store(url, size, version) {
    if (!this.cache) return null;
    try {
      return await openStore(url.href, size, version, BLOCK, (note) => this.notes.push(note));
    } catch (error) {
      this.notes.push(`not cached: ${error.message}`);
      return null;
    }
  }

  count(kind, bytes) {
    this[kind] += bytes;
    this.onBytes(this);
  }

  /** Bytes of the files that hold tensors. */
  get total() {
    return [...this.files.values()].reduce((sum, file) => sum + file.size, 0);
  }

  names() {
    return undefined;
  }

  async small(names) {
    const entry = async (name) => {
      const answer = await this.fetch(new URL(name, this.url));
      // Servers of single-page programs answer with the page where a file is missing.
      const page = answer.headers.get('content-type')?.startsWith('text/html');
      if (answer.status === 404 || answer.status === 410 || (answer.ok && page)) return null;
      if (!answer.ok) throw new Error(`${name}: the server answers ${answer.status} ${answer.statusText}`.trim());
      return [name, new Uint8Array(await answer.arrayBuffer())];
    };
    const found = (await Promise.all(names.map(entry))).filter(Boolean);
    if (found.length === 0) throw new Error(`${this.url.href} holds no checkpoint: the server answers 404 for config.json and all the other files`);
    return found;
  }

  async size(name) {
    const file = new RemoteFile(new URL(name, this.url), name, this);
    if (!(await file.open())) return undefined;
    this.files.set(name, file);
    return file.size;
  }

  read(name, start, end) {
    return this.files.get(name).read(start, end);
  }

  /** SHA-256 over the hashes of a file's blocks, where all of them are cached. */
  async hashes() {
    const entries = [...this.files.values()].map(async (file) => [file.name, (await file.store?.root(file.count())) ?? null]);
    return Object.fromEntries(await Promise.all(entries));
  }

  close() {
    for (const file of this.files.values()) file.store?.close();
  }
}

/** Files that the person gave: a list, or a folder's handle. */
export class LocalFolder {
  constructor(files, onBytes = () => {}) {
    Object.assign(this, { files, onBytes, received: 0, cached: 0, notes: [] });
  }

  static async of(source, onBytes) {
    const files = new Map();
    if (source.kind === 'directory') {
      for await (const entry of source.values()) if (entry.kind === 'file') files.set(entry.name, await entry.getFile());
    } else {
      // What lies deeper than the folder itself belongs to something else.
      for (const file of source) if ((file.webkitRelativePath ?? '').split('/').length <= 2) files.set(file.name, file);
    }
    return new LocalFolder(files, onBytes);
  }

  get total() {
    return [...this.files].filter(([name]) => name.endsWith('.safetensors')).reduce((sum, [, file]) => sum + file.size, 0);
  }

  names() {
    return [...this.files.keys()];
  }

  async small(names) {
    const there = names.filter((name) => this.files.has(name));
    return Promise.all(there.map(async (name) => [name, new Uint8Array(await this.files.get(name).arrayBuffer())]));
  }

  async size(name) {
    return this.files.get(name)?.size;
  }

  async read(name, start, end) {
    const bytes = new Uint8Array(await this.files.get(name).slice(start, end).arrayBuffer());
    this.received += bytes.length;
    this.onBytes(this);
    return bytes;
  }

  async hashes() {
    return {};
  }

  close() {}
}
