// The conversation: what was said, and the reply as it comes.

import { $, plot, rate, showMemory, showRates } from './panel.js';

const ENDS = { length: '(the limit was reached)', cancelled: '(stopped)' };
/** Sampling fields that are numbers, by their ids. */
const NUMBERS = ['temperature', 'topP', 'topK', 'minP', 'seed', 'maxTokens'];

/** A piece of the log; returns the element that text goes into. */
function turn(kind) {
  const element = document.createElement('div');
  element.className = `turn ${kind}`;
  $('log').append(element);
  return element;
}

function part(parent, className) {
  const span = document.createElement('span');
  span.className = className;
  parent.append(span);
  return span;
}

/** Where a reply's reasoning goes: folded, made when the first of it comes. */
function thinking(parent) {
  const fold = document.createElement('details');
  fold.className = 'thinking';
  fold.innerHTML = '<summary>Thinking…</summary>';
  const text = part(fold, 'thought');
  parent.prepend(fold);
  return { text, done: () => (fold.firstChild.textContent = 'Thought') };
}

/** Keeps the end of the log in view for those who have not scrolled away from it. */
function follow(write) {
  const log = $('log');
  const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  write();
  if (atEnd) log.scrollTop = log.scrollHeight;
}

export class Talk {
  session = null;
  messages = [];
  busy = false;

  get mode() {
    return document.querySelector('[name="mode"]:checked').value;
  }

  options() {
    const options = {};
    for (const id of NUMBERS) if ($(id).value !== '') options[id] = $(id).valueAsNumber;
    if ($('stopText').value) options.stop = [$('stopText').value];
    if (this.mode === 'chat') options.reasoning = $('reasoning').checked;
    return options;
  }

  /** Text to write on from, or a message to answer. */
  async say(text) {
    const chat = this.mode === 'chat';
    const element = chat ? (turn('user').append(text), turn('assistant')) : turn('assistant');
    if (!chat) part(element, 'given').textContent = text;
    const input = chat ? [...this.messages, { role: 'user', content: text }] : text;
    const reply = await this.write(element, input);
    if (chat && reply !== null) this.messages = [...input, { role: 'assistant', content: reply }];
  }

  /** Shows a reply as it comes; its text, or null where it failed. */
  async write(element, input) {
    const content = part(element, 'content');
    let fold = null;
    let text = '';
    this.busy = true;
    plot.begin();
    $('speed').textContent = 'Reading the prompt…';
    try {
      for await (const delta of this.session.generate(input, this.options())) {
        delta.tokens.forEach(() => plot.token());
        follow(() => {
          if (delta.reasoning) (fold ??= thinking(element)).text.append(delta.reasoning);
          if (delta.content) {
            fold?.done();
            content.append(delta.content);
          }
        });
        text += delta.content;
        if (delta.done) this.end(element, delta.done);
      }
      return text;
    } finally {
      fold?.done();
      this.busy = false;
    }
  }

  async end(element, { stop, usage, memory }) {
    if (ENDS[stop]) part(element, 'end').textContent = ENDS[stop];
    showRates(usage);
    $('speed').textContent = `Prefill ${rate(usage.prefill_tokens_per_second)} · decode ${rate(usage.decode_tokens_per_second)}`;
    showMemory(this.session.about.plan, memory, (await this.session.memory()).wasmBytes);
  }

  clear() {
    this.messages = [];
    $('log').replaceChildren();
  }
}
