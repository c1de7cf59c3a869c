// How weights come: by ranges, from the cache, from a dropped folder, and what is said where they do not.

import assert from 'node:assert/strict';
import { readFileSync, statSync } from 'node:fs';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { ROOT, blank, browser, server } from './harness.mjs';
import { synthetic } from './synthetic.mjs';

const WEIGHTS = statSync(path.join(ROOT, 'core/fixtures/bard/model.safetensors')).size;
const MIB = 1 << 20;
let web;
let chrome;
before(async () => ([web, chrome] = [await server(), await browser()]));
after(async () => {
  await chrome.close();
  web.server.close();
});

/**
 * Opens a model and closes it; what it tells, and what the server sent for weights meanwhile. On the CPU unless told
 * otherwise: the bytes come the same way, and a software adapter compiles shaders for seconds.
 */
async function load(page, url, options = {}) {
  web.log.length = 0;
  const told = await page.evaluate(async ([where, opening]) => {
    const steps = [];
    const { session, error } = await window.whipsnake.openModel(where, { backend: 'cpu', ...opening, onProgress: (step) => steps.push(step) }).then((s) => ({ session: s }), (e) => ({ error: `${e.name}: ${e.message}` }));
    if (error) return { error, steps };
    const [logits] = await session.logits([5]);
    const { about } = session;
    const memory = await session.memory();
    session.close();
    return { about, memory, steps, finite: logits.every(Number.isFinite) };
  }, [url, options]);
  const sent = web.log.filter((entry) => entry.pathname.endsWith('.safetensors'));
  return { ...told, sent, bytes: sent.reduce((sum, entry) => sum + entry.bytes, 0) };
}

test('weights come by ranges, each byte once, several requests at a time, and are cached with their hash', async () => {
  const page = await blank(chrome, web.origin);
  const first = await load(page, '/models/bard', { backend: 'webgpu' });
  assert.ok(first.finite);
  assert.ok(first.sent.every(({ status, range }) => status === 206 && range));
  // The first request asks for eight bytes, to learn the size.
  assert.equal(first.bytes, WEIGHTS + 8);
  assert.ok(first.sent.length >= 6, `${first.sent.length} requests`);
  assert.ok(first.sent.every((entry) => entry.bytes <= 2 * MIB), 'no request is for a large part of the file');
  assert.equal(first.about.loading.received, WEIGHTS);
  assert.match(first.about.loading.hashes['model.safetensors'], /^[0-9a-f]{64}$/);
  const last = first.steps.at(-1);
  assert.deepEqual([last.received, last.total, last.tensors > 50], [WEIGHTS, WEIGHTS, true]);

  const second = await load(page, '/models/bard');
  assert.ok(second.finite);
  assert.equal(second.bytes, 8, 'only the size is asked for');
  assert.equal(second.about.loading.cached, WEIGHTS);
  assert.equal(second.about.loading.hashes['model.safetensors'], first.about.loading.hashes['model.safetensors']);
  await page.context().close();
});

test('a block of the cache that was damaged is fetched again', async () => {
  const page = await blank(chrome, web.origin);
  await load(page, '/models/bard');
  await page.evaluate(async () => {
    const models = await (await navigator.storage.getDirectory()).getDirectoryHandle('whipsnake');
    for await (const folder of models.values()) {
      for await (const file of folder.values()) {
        if (!file.name.endsWith('.data')) continue;
        const writer = await file.createWritable({ keepExistingData: true });
        await writer.write({ type: 'write', position: 3 * 1048576 + 17, data: new Uint8Array([1, 2, 3, 4]) });
        await writer.close();
      }
    }
  });
  const again = await load(page, '/models/bard');
  assert.ok(again.finite);
  assert.equal(again.bytes, 8 + MIB);
  assert.deepEqual(again.about.loading.notes, ['block 3 of the cache was damaged and is fetched again']);
  await page.context().close();
});

test('a transfer that breaks goes on where it broke, and a load that failed resumes from the cache', async () => {
  const page = await blank(chrome, web.origin);
  web.state.breaks = 2;
  const through = await load(page, '/flaky/models/bard', { cache: false });
  assert.equal(web.state.breaks, 0);
  assert.equal(through.about?.loading.received, WEIGHTS, through.error);
  const failed = await load(page, '/truncated/models/bard');
  assert.match(failed.error, /truncated/);
  await page.context().close();
});

test('a load that was cut short resumes: what had come is not fetched again', async () => {
  const page = await blank(chrome, web.origin);
  web.state.breaks = 0;
  // The page goes away in the middle.
  await page.evaluate(() => new Promise((done) => {
    window.whipsnake.openModel('/flaky/models/bard', { backend: 'cpu', onProgress: ({ received }) => received > 3 * 1048576 && done() }).catch(() => {});
  }));
  await page.reload();
  await page.waitForFunction(() => window.whipsnake);
  const resumed = await load(page, '/flaky/models/bard');
  assert.equal(resumed.error, undefined);
  assert.ok(resumed.about.loading.cached >= 2 * MIB, JSON.stringify(resumed.about.loading));
  assert.equal(resumed.about.loading.cached + resumed.about.loading.received, WEIGHTS);
  await page.context().close();
});

for (const cache of [true, false]) {
  test(`a server without ranges sends the file once (cache ${cache})`, async () => {
    const page = await blank(chrome, web.origin);
    const { finite, sent, about, error } = await load(page, '/noranges/models/bard', { cache });
    assert.ok(finite, error);
    assert.deepEqual(sent.map(({ status, bytes }) => [status, bytes]), [[200, WEIGHTS]]);
    assert.equal(about.loading.received, WEIGHTS);
    await page.context().close();
  });
}

test('shards and a folder of files that the person gave load as well', async () => {
  const page = await blank(chrome, web.origin);
  const sharded = await load(page, '/fixtures/golden/nemotron-sharded');
  assert.ok(sharded.finite, sharded.error);
  assert.equal(new Set(sharded.sent.map((entry) => entry.pathname)).size, 3);
  const folder = path.join(ROOT, 'core/fixtures/golden/nemotron-moe');
  const files = ['config.json', 'tokenizer.json', 'model.safetensors'].map((name) => [name, readFileSync(path.join(folder, name)).toString('base64')]);
  const about = await page.evaluate(async (given) => {
    const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const list = given.map(([name, text]) => new File([bytes(text)], name));
    const fromFiles = await window.whipsnake.openModel(list, { backend: 'cpu' });
    const handle = await (await navigator.storage.getDirectory()).getDirectoryHandle('given', { create: true });
    for (const file of list) {
      const writer = await (await handle.getFileHandle(file.name, { create: true })).createWritable();
      await writer.write(file);
      await writer.close();
    }
    const fromHandle = await window.whipsnake.openModel(handle, { backend: 'cpu' });
    const rows = await Promise.all([fromFiles, fromHandle].map(async (s) => (await s.logits([7, 8])).map((row) => [...row])));
    return [JSON.stringify(rows[0]) === JSON.stringify(rows[1]), fromFiles.about.loading.received];
  }, files);
  assert.equal(about[0], true);
  assert.ok(about[1] > 0);
  await page.context().close();
});

test('what cannot be loaded is said', async () => {
  const page = await blank(chrome, web.origin);
  const error = async (url, options) => (await load(page, url, options)).error.replaceAll(web.origin, 'ORIGIN');
  assert.equal(await error('/models/none'), 'Error: ORIGIN/models/none/ holds no checkpoint: the server answers 404 for config.json and all the other files'.replace('Error', 'IoError'));
  assert.equal(await error('/failing/models/bard'), 'IoError: config.json: the server answers 500 Internal Server Error');
  assert.match(await error('/truncated/models/bard', { cache: false }), /^IoError: model\.safetensors: bytes \d+ to \d+ were asked for, \d+ came; the file is truncated or the connection broke$/);
  assert.match(await error('http://127.0.0.1:9/x'), /^IoError: .*cannot reach 127\.0\.0\.1:9/);
  assert.match(await error('/fixtures/bard-training'), /holds no checkpoint/);
  assert.equal(await error('/models/bard', { backend: 'gpu' }), 'RequestError: backend is "gpu", want "webgpu" or "cpu"');
  assert.match(await error('/models/bard', { context: 100000 }), /^RequestError: session: a context of 100000 is longer than the 4096/);
  await page.context().close();
});

test('a checkpoint of 200 MB passes through less than 64 MB of wasm memory', async () => {
  const url = await synthetic('made-200', 200);
  const page = await blank(chrome, web.origin);
  const { finite, about, memory, bytes, error } = await load(page, url, { backend: 'webgpu', cache: false, context: 64, rows: 8 });
  assert.ok(finite, error);
  assert.ok(bytes > 195e6, `${bytes} bytes`);
  assert.ok(about.stored_bytes > 195e6);
  assert.ok(memory.wasmBytes < 64e6, `${memory.wasmBytes} bytes of wasm memory`);
  await page.context().close();
});
