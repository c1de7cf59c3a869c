// Logits through the module against the public implementation's, the self-check, and the size of the module.

import assert from 'node:assert/strict';
import { readFileSync, readdirSync } from 'node:fs';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { gzipSync } from 'node:zlib';
import { SITE } from '../serve.mjs';
import { ROOT, blank, browser, server } from './harness.mjs';

/** Largest difference of a logit: both sides are f32 sums in another order; the fixtures' logits are of size 1 to 10. */
const BOUND = 2e-4;
const FIXTURES = path.join(ROOT, 'core/fixtures');
const GOLDEN = [...readdirSync(path.join(FIXTURES, 'golden')).filter((name) => !name.includes('.')).map((name) => `golden/${name}`), 'bard', 'bard-nvfp4'];
let web;
let chrome;
before(async () => ([web, chrome] = [await server(), await browser()]));
after(async () => {
  await chrome.close();
  web.server.close();
});

/** The f32 tensors of a safetensors file, each as rows. */
function rowsOf(file) {
  const bytes = readFileSync(file);
  const start = 8 + Number(bytes.readBigUInt64LE(0));
  const header = JSON.parse(bytes.subarray(8, start).toString());
  return (name) => {
    const { shape: [rows, cols], data_offsets: [begin, end] } = header[name];
    const values = new Float32Array(bytes.buffer.slice(bytes.byteOffset + start + begin, bytes.byteOffset + start + end));
    return Array.from({ length: rows }, (_, row) => values.subarray(row * cols, (row + 1) * cols));
  };
}

for (const fixture of GOLDEN) {
  test(`logits of ${fixture} on WebGPU are within ${BOUND} of the public implementation's`, async () => {
    const folder = path.join(FIXTURES, fixture);
    // The long prompt on one fixture: a software adapter takes 15 seconds for it.
    const { prompts: all } = JSON.parse(readFileSync(path.join(folder, 'golden.json'), 'utf8'));
    const prompts = all.filter(({ ids }) => fixture === 'golden/nemotron-moe' || ids.length < 100);
    const golden = rowsOf(path.join(folder, 'golden.safetensors'));
    const page = await blank(chrome, web.origin);
    await page.evaluate(async (url) => (window.session = await window.whipsnake.openModel(url, { cache: false })), `/fixtures/${fixture}`);
    let largest = 0;
    for (const { name, ids } of prompts) {
      const want = golden(`${name}.logits`);
      const rows = await page.evaluate(async ([tokens, count]) => (await window.session.logits(tokens)).slice(-count).map((row) => [...row]), [ids, want.length]);
      want.forEach((row, index) => row.forEach((value, column) => (largest = Math.max(largest, Math.abs(value - rows[index][column])))));
      assert.ok(rows.flat().every(Number.isFinite), name);
    }
    assert.ok(prompts.length > 0 && largest < BOUND, `${largest}`);
    console.log(`${fixture}: ${largest.toExponential(1)}`);
    assert.deepEqual(page.errors, []);
    await page.context().close();
  });
}

test('the device report names the adapter, its limits and the variants', async () => {
  const page = await blank(chrome, web.origin);
  const [report] = await page.evaluate(() => window.whipsnake.deviceReport());
  assert.equal(report.verdict, 'chosen');
  assert.equal(report.kind, 'software');
  assert.equal(report.architecture, 'swiftshader');
  assert.ok(report.limits.storage_buffers >= 8 && report.variants.length > 0);
  await page.context().close();
});

// Every op passes the same suite within WebGPU's defaults natively; `SELFCHECK=` runs all of it here. The cases of moe_up
// hold more weights together than the module hands over at once: there the check once waited for ever.
for (const filter of 'SELFCHECK' in process.env ? [process.env.SELFCHECK] : ['norm', 'moe_up']) test(`the self-check finds nothing wrong with this device (${filter || 'all ops'})`, async () => {
  const page = await blank(chrome, web.origin);
  const outcomes = await page.evaluate(async (wanted) => {
    const seen = [];
    const report = await window.whipsnake.selfcheck({ filter: wanted, onOutcome: (outcome) => seen.push(outcome) });
    return { ...report, seen: seen.length };
  }, filter);
  assert.ok(outcomes.seen > 30 && outcomes.seen === outcomes.outcomes.length);
  assert.deepEqual(outcomes.outcomes.filter(({ fault }) => fault), []);
  await page.context().close();
});

test('the module is below 1.5 MB gzipped', () => {
  const bytes = gzipSync(readFileSync(path.join(SITE, 'wasm/whipsnake_web_bg.wasm')), { level: 9 }).length;
  console.log(`${bytes} bytes gzipped`);
  assert.ok(bytes < 1.5e6, `${bytes}`);
});
