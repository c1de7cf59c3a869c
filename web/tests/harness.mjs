// What the browser tests share: a server that counts and fails on purpose, browsers, the CLI.

import { execFileSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, statSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { chromium } from 'playwright-core';
import { SITE, answer, listen } from '../serve.mjs';

export const ROOT = fileURLToPath(new URL('../../', import.meta.url));
export const SHOTS = path.join(ROOT, 'target/site-shots');
const FLAGS = ['--no-sandbox', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'];
const WEBGPU = '--enable-unsafe-webgpu';
/** A software adapter on a busy machine writes a token a second. */
const PATIENCE_MS = 180000;

/** Folders by the first part of the path; what is not named is the site. */
const MOUNTS = { fixtures: path.join(ROOT, 'core/fixtures'), tests: path.join(ROOT, 'web/tests'), made: path.join(ROOT, 'target/site-made') };

/** A server that keeps a list of what it sent, and whose `/FAULT/rest` serves `/rest` with a fault. */
export async function server() {
  const log = [];
  /** Requests for weights that are to break off before the transfer works again. */
  const state = { breaks: 0 };
  const faults = {
    noranges: (request, response, rest) => route(request, response, rest, { ranges: false }),
    // A part of the file is gone: what follows the middle is never sent.
    truncated: (request, response, rest) => {
      const range = /bytes=(\d+)-/.exec(request.headers.range ?? '');
      if (!range || Number(range[1]) < 2 ** 20) return route(request, response, rest);
      const [, first] = range.map(Number);
      response.writeHead(206, { 'content-range': `bytes ${first}-${first + 3}/9804080`, 'content-length': 4 }).end('abcd');
      return undefined;
    },
    // The connection breaks in the middle of an answer.
    flaky: (request, response, rest) => {
      const weights = rest.endsWith('.safetensors') && !/=0-7$/.test(request.headers.range ?? '');
      if (!weights || state.breaks === 0) return route(request, response, rest);
      state.breaks -= 1;
      const [first, last] = /bytes=(\d+)-(\d+)/.exec(request.headers.range).slice(1).map(Number);
      const bytes = readFileSync(path.join(SITE, rest)).subarray(first, last + 1);
      response.writeHead(206, { 'content-range': `bytes ${first}-${last}/9804080`, 'content-length': bytes.length });
      response.write(bytes.subarray(0, bytes.length >> 1), () => response.destroy());
      return undefined;
    },
    failing: async (request, response) => response.writeHead(500).end(),
  };
  const route = (request, response, pathname, options) => {
    const [, first, rest] = /^\/([^/]+)(\/.*)$/.exec(pathname) ?? [];
    if (faults[first]) return faults[first](request, response, rest);
    if (MOUNTS[first]) return answer(MOUNTS[first], rest, request, response, options);
    return answer(SITE, pathname, request, response, options);
  };
  const handler = async (request, response) => {
    const { pathname } = new URL(request.url, 'http://localhost');
    const entry = { pathname, range: request.headers.range ?? null, bytes: 0 };
    log.push(entry);
    response.on('close', () => {
      entry.status = response.statusCode;
      entry.bytes = Number(response.getHeader('content-length') ?? 0);
    });
    await route(request, response, pathname);
  };
  return { ...(await listen(handler)), log, state };
}

export function browser({ webgpu = true } = {}) {
  const executablePath = process.env.CHROMIUM ?? '/usr/bin/chromium';
  return chromium.launch({ executablePath, headless: true, args: webgpu ? [...FLAGS, WEBGPU] : FLAGS });
}

/** A page with nothing but the module, as `window.whipsnake`; errors of the page fail the test. */
export async function blank(chrome, origin) {
  const context = await chrome.newContext();
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE_MS);
  page.errors = [];
  page.on('pageerror', (error) => page.errors.push(error.message));
  page.on('console', (message) => message.type() === 'error' && !/404/.test(message.text()) && page.errors.push(message.text()));
  await page.goto(`${origin}/tests/blank.html`);
  await page.waitForFunction(() => window.whipsnake);
  return page;
}

/** The page of the site, in one of its states. */
export async function site(chrome, origin, { query = '', state = 'ready', ...options } = {}) {
  const context = await chrome.newContext({ viewport: { width: 1280, height: 860 }, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE_MS);
  await page.addInitScript(() => {
    window.longTasks = [];
    new PerformanceObserver((list) => window.longTasks.push(...list.getEntries().map((e) => e.duration))).observe({ type: 'longtask', buffered: true });
  });
  await page.goto(`${origin}/${query}`);
  await page.waitForFunction((want) => document.body.dataset.state === want, state);
  return page;
}

export async function shot(page, name) {
  mkdirSync(SHOTS, { recursive: true });
  await page.screenshot({ path: path.join(SHOTS, `${name}.png`) });
}

/** What the command line prints, as JSON. */
export function cli(...args) {
  const programs = ['release', 'debug'].map((profile) => path.join(ROOT, 'target', profile, 'whipsnake')).filter(existsSync);
  // The newest: another may be of yesterday.
  const [built] = programs.sort((a, b) => statSync(b).mtimeMs - statSync(a).mtimeMs);
  const [program, before] = built ? [built, []] : ['cargo', ['run', '--quiet', '--package', 'whipsnake', '--']];
  const text = execFileSync(program, [...before, ...args, '--backend', 'cpu', '--json'], { cwd: ROOT, encoding: 'utf8', maxBuffer: 1 << 28, stdio: ['ignore', 'pipe', 'inherit'] });
  return JSON.parse(text);
}

export const greedyOfCli = (model, tokens, count) => cli('logits', '--model', path.join(ROOT, 'core/fixtures', model), '--tokens', tokens.join(','), '--greedy', String(count)).greedy;
