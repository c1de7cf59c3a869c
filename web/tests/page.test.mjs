// The page in each of its states; a picture of each is kept in target/site-shots.

import assert from 'node:assert/strict';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { ROOT, browser, server, shot, site } from './harness.mjs';

/** Longest time that the page may keep the main thread. */
const LONGEST_TASK_MS = 50;
/** Where the page is looked at and not the device: a software adapter compiles shaders for seconds. */
const CPU = '?backend=cpu';
let web;
let chrome;
before(async () => ([web, chrome] = [await server(), await browser()]));
after(async () => {
  await chrome.close();
  web.server.close();
});

const text = (page, id) => page.locator(`#${id}`).innerText();
const idle = (page) => page.waitForFunction(() => document.getElementById('stop').disabled && !document.getElementById('send').disabled);

/** The longest task of the main threads of pages, by the time on the processor: other programs do not count. */
function longestTask(trace) {
  const { traceEvents: events } = JSON.parse(trace);
  const main = new Set(events.filter((e) => e.name === 'thread_name' && e.args.name === 'CrRendererMain').map((e) => `${e.pid} ${e.tid}`));
  const tasks = events.filter((e) => e.tdur !== undefined && main.has(`${e.pid} ${e.tid}`)).map((e) => e.tdur / 1000);
  return { count: tasks.length, longest: Math.max(...tasks) };
}

async function say(page, words) {
  await page.fill('#input', words);
  await page.press('#input', 'Enter');
}

test('the small model loads, answers, and the page never blocks', async () => {
  const page = await site(chrome, web.origin);
  assert.match(await text(page, 'badge'), /^WebGPU/);
  assert.equal(await page.locator('#layers span').count(), 10);
  await shot(page, 'ready-light');
  // From here on what the page itself does: the browser's own start, its fonts and its first picture are behind.
  await chrome.startTracing(undefined, { categories: ['toplevel', '__metadata'] });
  await page.evaluate(() => (window.longTasks.length = 0));
  await page.press('#url', 'Enter');
  await page.waitForFunction(() => document.body.dataset.state === 'loading');
  await page.waitForFunction(() => document.body.dataset.state === 'ready');
  await page.locator('summary', { hasText: 'Sampling' }).click();
  await page.fill('#maxTokens', '16');
  await page.fill('#seed', '3');
  await say(page, 'Who art thou?');
  await page.waitForFunction(() => document.querySelector('.turn.assistant .content')?.textContent.length > 8);
  assert.equal(await page.locator('#stop').isEnabled(), true);
  await idle(page);
  await say(page, 'Speak on.');
  await page.waitForFunction(() => document.querySelectorAll('.turn.assistant .content').length === 2);
  await idle(page);
  assert.match(await text(page, 'speed'), /Prefill .* tok\/s · decode .* tok\/s/);
  assert.match(await text(page, 'memory'), /weights/);
  const { count, longest } = longestTask(await chrome.stopTracing());
  console.log(`longest of ${count} tasks: ${longest} ms; the observer saw ${await page.evaluate(() => window.longTasks)}`);
  assert.ok(count > 100 && longest < LONGEST_TASK_MS, `${longest} ms`);
  await shot(page, 'chat');
  await page.context().close();
});

test('reasoning is folded, stop stops, Escape too', async () => {
  const page = await site(chrome, web.origin, { colorScheme: 'dark' });
  await page.check('#reasoning');
  await page.locator('summary', { hasText: 'Sampling' }).click();
  await page.fill('#maxTokens', '1000');
  const stopped = () => page.locator('.turn .end', { hasText: '(stopped)' }).count();
  // A reply may end by itself before the stop is there: then another is asked for.
  const stopBy = async (end) => {
    const before = await stopped();
    for (let turn = 0; turn < 12 && (await stopped()) === before; turn += 1) {
      const said = await page.locator('.turn.assistant').count();
      await say(page, 'Speak of the sea, and speak long.');
      await page.waitForFunction((index) => document.querySelectorAll('.turn.assistant')[index]?.textContent.length > 0, said);
      await end();
      await idle(page);
    }
    assert.equal(await stopped(), before + 1);
  };
  await stopBy(() => page.click('#stop', { timeout: 2000 }).catch(() => {}));
  await page.waitForFunction(() => document.querySelector('.thought')?.textContent.length > 0);
  assert.equal(await page.locator('.thinking').first().getAttribute('open'), null);
  await page.locator('.thinking summary').first().click();
  await shot(page, 'reasoning-dark');
  await page.uncheck('#reasoning');
  await stopBy(() => page.press('body', 'Escape'));
  await page.context().close();
});

test('prompt mode writes on from the text, at phone width', async () => {
  const page = await site(chrome, web.origin, { query: CPU, viewport: { width: 390, height: 844 }, isMobile: true, deviceScaleFactor: 2 });
  await page.check('[name="mode"][value="prompt"]');
  await page.evaluate(() => (document.getElementById('maxTokens').value = 16));
  await page.fill('#input', 'To be, or not');
  await page.click('#send');
  await idle(page);
  assert.equal(await page.locator('.turn .given').innerText(), 'To be, or not');
  assert.ok((await page.locator('.turn .content').innerText()).length > 8);
  const wide = await page.evaluate(() => document.documentElement.scrollWidth);
  assert.equal(wide, 390, 'nothing is wider than the phone');
  await shot(page, 'phone');
  await page.context().close();
});

test('the keyboard reaches every control', async () => {
  const page = await site(chrome, web.origin, { query: CPU });
  const reached = new Set();
  for (let i = 0; i < 60; i += 1) {
    await page.keyboard.press('Tab');
    reached.add(await page.evaluate(() => document.activeElement.id || document.activeElement.textContent.trim()));
  }
  for (const id of ['theme', 'reasoning', 'clear', 'log', 'input', 'send', 'url', 'pick', 'cpu', 'Sampling', 'Self-check']) {
    assert.ok(reached.has(id), `${id} among ${[...reached].join(', ')}`);
  }
  await page.context().close();
});

test('the self-check shows what it finds', async () => {
  const page = await site(chrome, web.origin, { query: '?check=rms_norm' });
  await page.locator('summary', { hasText: 'Self-check' }).click();
  await page.click('#check');
  await page.waitForFunction(() => /this device computes/.test(document.getElementById('check-text').textContent));
  assert.match(await text(page, 'check-text'), /^\d+ passed, 0 failed: /);
  await page.locator('#check-text').scrollIntoViewIfNeeded();
  await shot(page, 'self-check');
  await page.context().close();
});

test('a model that fails to load says why, and another can be opened after it', async () => {
  const page = await site(chrome, web.origin, { query: `${CPU}&model=models/none`, state: 'failed' });
  assert.match(await text(page, 'notice-text'), /holds no checkpoint/);
  await shot(page, 'not-found');
  await page.fill('#url', '/truncated/models/bard');
  await page.press('#url', 'Enter');
  await page.waitForFunction(() => /truncated/.test(document.getElementById('notice-text').textContent));
  await shot(page, 'truncated');
  await page.fill('#url', '/noranges/models/bard-nvfp4');
  await page.press('#url', 'Enter');
  await page.waitForFunction(() => document.body.dataset.state === 'ready');
  assert.equal(await page.locator('#notice').isVisible(), false);
  await page.context().close();
});

test('loading shows its progress', async () => {
  const page = await site(chrome, web.origin, { query: CPU });
  // The next model is slow to come.
  await page.context().route(/safetensors/, async (route) => {
    await new Promise((go) => setTimeout(go, 400));
    await route.continue();
  });
  await page.fill('#url', '/models/bard-nvfp4');
  await page.press('#url', 'Enter');
  await page.waitForFunction(() => /Loading .* of /.test(document.getElementById('load-text').textContent) && document.getElementById('load-bar').value > 0.1);
  await shot(page, 'loading');
  await page.waitForFunction(() => document.body.dataset.state === 'ready');
  await page.context().close();
});

test('a lost device is said, and the model can be opened again', async () => {
  const page = await site(chrome, web.origin);
  await page.evaluate(() => (document.getElementById('maxTokens').value = 500));
  await say(page, 'Tell me a tale.');
  await page.waitForFunction(() => document.querySelector('.turn.assistant .content')?.textContent.length > 4);
  const devtools = await chrome.newBrowserCDPSession();
  await devtools.send('Browser.crashGpuProcess').catch(() => {});
  const failed = () => document.body.dataset.state === 'failed';
  await page.waitForFunction(() => document.body.dataset.state === 'failed' || document.getElementById('stop').disabled);
  // The reply may have ended before the device did: then the next one fails.
  if (!(await page.evaluate(failed))) await say(page, 'More.');
  await page.waitForFunction(failed);
  assert.match(await text(page, 'notice-text'), /the device was lost/);
  await shot(page, 'lost-device');
  await page.click('#retry');
  await page.waitForFunction(() => document.body.dataset.state === 'ready');
  await page.context().close();
});

test('without an adapter the page says so and runs on the CPU when asked', async () => {
  const plain = await browser({ webgpu: false });
  const page = await site(plain, web.origin, { state: 'missing' });
  assert.match(await text(page, 'notice-text'), /offers no WebGPU adapter/);
  assert.equal(await page.locator('#badge').isVisible(), false, 'nothing runs unasked');
  await shot(page, 'no-adapter');
  await page.click('#use-cpu');
  await page.waitForFunction(() => document.body.dataset.state === 'ready');
  assert.equal(await text(page, 'badge'), 'CPU');
  await page.evaluate(() => (document.getElementById('maxTokens').value = 30));
  await say(page, 'Good morrow.');
  await idle(page);
  assert.ok((await page.locator('.turn.assistant .content').innerText()).length > 5);
  await shot(page, 'cpu');
  await plain.close();
});

test('a folder that is dropped opens', async () => {
  const page = await site(chrome, web.origin, { query: CPU });
  const folder = path.join(ROOT, 'core/fixtures/golden/nemotron-moe');
  await page.setInputFiles('#files', folder);
  await page.waitForFunction(() => /nemotron-moe/.test(document.getElementById('model-line').textContent) && document.body.dataset.state === 'ready');
  await page.context().close();
});
