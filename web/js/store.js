// Blocks of a file in the origin's private file system, each with its SHA-256: what is read back is what was written.

const HASH = 32;

const hex = (bytes) => [...bytes].map((byte) => byte.toString(16).padStart(2, '0')).join('');

const digest = async (bytes) => new Uint8Array(await crypto.subtle.digest('SHA-256', bytes));

const nameOf = async (text) => hex(await digest(new TextEncoder().encode(text))).slice(0, 32);

/**
 * The store of a file. A file of another size or version at the same address takes its place.
 * Throws where there is no such storage, or another tab has the file open.
 */
export async function openStore(url, size, version, block, onNote) {
  if (!navigator.storage?.getDirectory) throw new Error('this browser has no private file system here');
  const root = await navigator.storage.getDirectory();
  const models = await root.getDirectoryHandle('whipsnake', { create: true });
  const folder = await models.getDirectoryHandle(await nameOf(url), { create: true });
  const name = await nameOf(`${size} ${version} ${block}`);
  for await (const old of folder.keys()) if (!old.startsWith(name)) await folder.removeEntry(old).catch(() => {});
  const handle = async (ending) => (await folder.getFileHandle(`${name}.${ending}`, { create: true })).createSyncAccessHandle();
  const hashes = await handle('hashes');
  try {
    return new Store(await handle('data'), hashes, block, onNote);
  } catch (error) {
    hashes.close();
    throw error;
  }
}

class Store {
  /** Hash of each block, zeros where it is not there. */
  constructor(data, hashFile, block, onNote) {
    Object.assign(this, { data, hashFile, block, onNote, full: false });
    this.hashes = new Uint8Array(hashFile.getSize());
    hashFile.read(this.hashes, { at: 0 });
  }

  hashOf(block) {
    return this.hashes.subarray(block * HASH, (block + 1) * HASH);
  }

  has(block) {
    const hash = this.hashOf(block);
    return hash.length === HASH && hash.some((byte) => byte !== 0);
  }

  /** The block; null where what is stored is not what was written. */
  async get(block, bytes) {
    const data = new Uint8Array(bytes);
    const length = this.data.read(data, { at: block * this.block });
    const want = hex(this.hashOf(block));
    if (length === bytes && hex(await digest(data)) === want) return data;
    this.note(block, new Uint8Array(HASH));
    this.onNote(`block ${block} of the cache was damaged and is fetched again`);
    return null;
  }

  async put(block, bytes) {
    if (this.full || !this.data) return;
    const hash = await digest(bytes);
    if (!this.data) return;
    try {
      this.data.write(bytes, { at: block * this.block });
      this.note(block, hash);
    } catch (error) {
      this.full = true;
      this.onNote(`the cache takes no more: ${error.message}`);
    }
  }

  note(block, hash) {
    const end = (block + 1) * HASH;
    if (this.hashes.length < end) {
      const longer = new Uint8Array(end);
      longer.set(this.hashes);
      this.hashes = longer;
    }
    this.hashes.set(hash, block * HASH);
    this.hashFile.write(hash, { at: block * HASH });
  }

  async root(blocks) {
    for (let block = 0; block < blocks; block += 1) if (!this.has(block)) return null;
    return hex(await digest(this.hashes.subarray(0, blocks * HASH)));
  }

  close() {
    for (const file of [this.data, this.hashFile]) {
      file?.flush();
      file?.close();
    }
    this.data = null;
  }
}
