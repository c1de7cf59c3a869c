// Text from the module on real WebGPU: the same as the command line's, chat, stop, state that goes on.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { blank, browser, greedyOfCli, server } from './harness.mjs';

const PROMPT = 'To be, or not to be';
let web;
let chrome;
before(async () => ([web, chrome] = [await server(), await browser()]));
after(async () => {
  await chrome.close();
  web.server.close();
});

async function opened(model, options = {}) {
  const page = await blank(chrome, web.origin);
  await page.evaluate(async ([url, opening]) => {
    window.session = await window.whipsnake.openModel(url, opening);
  }, [model, options]);
  return page;
}

const closed = async (page) => {
  assert.deepEqual(page.errors, []);
  await page.context().close();
};

for (const model of ['bard', 'bard-nvfp4']) {
  for (const backend of ['webgpu', 'cpu']) {
    test(`64 greedy tokens of ${model} on ${backend} are those of the command line`, async () => {
      const page = await opened(`/models/${model}`, { backend });
      const [ids, reply] = await page.evaluate(async (prompt) => {
        const options = { greedy: true, maxTokens: 64, ignoreEnd: true };
        return [await window.session.encode(prompt), await window.whipsnake.all(window.session, prompt, options)];
      }, PROMPT);
      assert.equal(reply.stop, 'length');
      assert.deepEqual(reply.tokens, greedyOfCli(model, ids, 64));
      assert.ok(reply.content.length > 64);
      await closed(page);
    });
  }
}

test('a chat answers with and without reasoning, and its second turn continues the state', async () => {
  const page = await opened('/models/bard');
  const turns = await page.evaluate(async () => {
    const { session, whipsnake } = window;
    const options = { greedy: true, maxTokens: 24 };
    const messages = [{ role: 'user', content: 'Who art thou?' }];
    const plain = await whipsnake.all(session, messages, { ...options, reasoning: false });
    const longer = [...messages, { role: 'assistant', content: plain.content }, { role: 'user', content: 'And then?' }];
    const second = await whipsnake.all(session, longer, { ...options, reasoning: false });
    const thinking = await whipsnake.all(session, messages, { ...options, reasoning: true });
    const afresh = await whipsnake.all(session, longer, { ...options, reasoning: false });
    return { plain, second, thinking, afresh };
  });
  assert.equal(turns.plain.reasoning, '');
  assert.ok(turns.plain.content.length > 0);
  assert.ok(turns.thinking.reasoning.length > 0, 'what follows an open <think> is reasoning');
  assert.equal(turns.plain.usage.cached_tokens, 0);
  if (turns.plain.stop === 'stop') {
    assert.ok(turns.second.usage.cached_tokens >= turns.plain.usage.prefill_tokens, 'the state of the first turn is there');
  }
  assert.equal(turns.afresh.usage.cached_tokens, 0, 'another conversation came between');
  assert.deepEqual(turns.second.tokens, turns.afresh.tokens);
  await closed(page);
});

test('a prompt that goes on from the last reply runs only what is new, and writes the same', async () => {
  const page = await opened('/models/bard');
  const { first, second, fresh } = await page.evaluate(async (prompt) => {
    const { session, whipsnake } = window;
    const options = { greedy: true, maxTokens: 12, ignoreEnd: true };
    const head = await whipsnake.all(session, prompt, options);
    const next = `${prompt}${head.content} and more`;
    const tail = await whipsnake.all(session, next, options);
    await session.logits([1]);
    return { first: head, second: tail, fresh: await whipsnake.all(session, next, options) };
  }, PROMPT);
  assert.ok(second.usage.cached_tokens >= first.usage.prefill_tokens, JSON.stringify(second.usage));
  assert.equal(fresh.usage.cached_tokens, 0, 'logits took the slot');
  assert.deepEqual(second.tokens, fresh.tokens);
  await closed(page);
});

for (const backend of ['webgpu', 'cpu']) {
  test(`stop ends a reply within one step on ${backend}`, async () => {
    const page = await opened('/models/bard', { backend });
    const seen = await page.evaluate(async (prompt) => {
      const counts = { before: 0, after: 0 };
      let stopped = false;
      for await (const delta of window.session.generate(prompt, { maxTokens: 2000, ignoreEnd: true, seed: 5 })) {
        counts[stopped ? 'after' : 'before'] += delta.tokens.length;
        if (counts.before === 5 && !stopped) {
          stopped = true;
          await window.session.stop();
        }
        if (delta.done) counts.stop = delta.done.stop;
      }
      const again = await window.whipsnake.all(window.session, prompt, { greedy: true, maxTokens: 3, ignoreEnd: true });
      return { ...counts, again: again.tokens.length };
    }, PROMPT);
    assert.equal(seen.stop, 'cancelled');
    // One step may be under way, and one whose news are on their way to the page.
    assert.ok(seen.after <= 2, `${seen.after} tokens after the stop`);
    assert.equal(seen.again, 3, 'the next reply runs');
    await closed(page);
  });
}

test('leaving the loop stops the reply', async () => {
  const page = await opened('/models/bard', { backend: 'cpu' });
  const next = await page.evaluate(async (prompt) => {
    for await (const delta of window.session.generate(prompt, { maxTokens: 3000, ignoreEnd: true })) if (delta.tokens.length) break;
    return window.whipsnake.all(window.session, prompt, { greedy: true, maxTokens: 4, ignoreEnd: true });
  }, PROMPT);
  assert.equal(next.tokens.length, 4);
  await closed(page);
});

test('the same seed gives the same text, a stop string ends it, options are checked by name', async () => {
  const page = await opened('/models/bard', { backend: 'cpu' });
  const { once, twice, cut, errors } = await page.evaluate(async (prompt) => {
    const { session, whipsnake } = window;
    const options = { seed: 11, temperature: 0.9, topP: 0.9, maxTokens: 20, ignoreEnd: true };
    const one = await whipsnake.all(session, prompt, options);
    const two = await whipsnake.all(session, prompt, options);
    const at = one.content.slice(8, 10);
    const short = await whipsnake.all(session, prompt, { ...options, stop: [at] });
    const refused = [];
    for (const bad of [{ temperature: -1 }, { colour: 3 }, { maxTokens: 0 }]) {
      await whipsnake.all(session, prompt, bad).catch((error) => refused.push(`${error.name}: ${error.message}`));
    }
    return { once: one.content, twice: two.content, cut: [short.content, short.stop, at], errors: refused };
  }, PROMPT);
  assert.equal(once, twice);
  assert.equal(cut[0], once.slice(0, once.indexOf(cut[2])));
  assert.equal(cut[1], 'stop');
  assert.equal(errors[0], 'RequestError: temperature is -1, want a number from 0 on');
  assert.match(errors[1], /^RequestError: request: unknown field `colour`/);
  assert.equal(errors[2], 'RequestError: max_tokens is 0, want at least 1');
  await closed(page);
});
