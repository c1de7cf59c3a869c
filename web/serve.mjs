// Serves the built site: `node web/serve.mjs [port]`. Ranges, the types and the headers that browsers want.

import { createReadStream } from 'node:fs';
import { stat } from 'node:fs/promises';
import http from 'node:http';
import path from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';

const TYPES = {
  '.css': 'text/css',
  '.html': 'text/html; charset=utf-8',
  '.js': 'text/javascript',
  '.json': 'application/json',
  '.mjs': 'text/javascript',
  '.svg': 'image/svg+xml',
  '.wasm': 'application/wasm',
};

export const SITE = fileURLToPath(new URL('../target/site/', import.meta.url));

/** The file of a request below `root`; null for what is not there or not below it. */
async function find(root, pathname) {
  const file = path.join(root, decodeURIComponent(pathname));
  if (!file.startsWith(path.join(root, '/'))) return null;
  const info = await stat(file).catch(() => null);
  if (info?.isDirectory()) return find(root, `${pathname}/index.html`);
  return info && { file, info };
}

/** First and last byte of a `Range` header; null for none, or one that is not served. */
function rangeOf(header, size) {
  const match = /^bytes=(\d+)-(\d*)$/.exec(header ?? '');
  if (!match) return null;
  const [first, last] = [Number(match[1]), match[2] === '' ? size - 1 : Math.min(Number(match[2]), size - 1)];
  return first <= last ? [first, last] : null;
}

/** Answers a request with a file below `root`. */
export async function answer(root, pathname, request, response, { ranges = true } = {}) {
  const headers = { 'cross-origin-opener-policy': 'same-origin', 'cross-origin-embedder-policy': 'require-corp', 'cache-control': 'no-cache' };
  const found = await find(root, pathname);
  if (!found) return response.writeHead(404, { ...headers, 'content-type': 'text/plain' }).end('not found');
  const { file, info } = found;
  const range = ranges ? rangeOf(request.headers.range, info.size) : null;
  const [first, last] = range ?? [0, info.size - 1];
  Object.assign(headers, { 'content-type': TYPES[path.extname(file)] ?? 'application/octet-stream', etag: `"${info.size}-${info.mtimeMs}"`, 'content-length': last - first + 1 });
  if (ranges) headers['accept-ranges'] = 'bytes';
  if (range) headers['content-range'] = `bytes ${first}-${last}/${info.size}`;
  response.statusCode = range ? 206 : 200;
  for (const [name, value] of Object.entries(headers)) response.setHeader(name, value);
  if (request.method === 'HEAD' || info.size === 0) return response.end();
  createReadStream(file, { start: first, end: last }).on('error', () => response.destroy()).pipe(response);
}

/** A server at `port`, any free one for 0. */
export async function listen(handler, port = 0) {
  const server = http.createServer((request, response) => handler(request, response).catch((error) => response.destroy(error)));
  await new Promise((done, fail) => server.once('error', fail).listen(port, '127.0.0.1', done));
  return { server, origin: `http://127.0.0.1:${server.address().port}` };
}

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href) {
  const handler = (request, response) => answer(SITE, new URL(request.url, 'http://localhost').pathname, request, response);
  const { origin } = await listen(handler, Number(process.argv[2] ?? 8080));
  console.log(`${origin}/`);
}
