// Compiles WGSL with Tint: node tint.mjs PACKAGE LIST, where LIST holds [[name, source], ...] in JSON.
import fs from 'node:fs';
import path from 'node:path';
import { pathToFileURL } from 'node:url';

const [folder, list] = process.argv.slice(2);
const main = JSON.parse(fs.readFileSync(path.join(folder, 'package.json'), 'utf8')).main ?? 'index.js';
const { create, globals } = await import(pathToFileURL(path.join(folder, main)));
Object.assign(globalThis, globals);
// Held to the end: promises of an instance that was collected never settle.
const gpu = create([]);
globalThis.held = gpu;
const adapter = await gpu.requestAdapter();
if (!adapter) {
  console.log('no adapter: Dawn wants the Vulkan driver that VK_DRIVER_FILES names');
  process.exit(1);
}
const optional = ['subgroups'].filter((feature) => adapter.features.has(feature));
const device = await adapter.requestDevice({ requiredFeatures: optional });
const sources = JSON.parse(fs.readFileSync(list, 'utf8'));
let failed = 0;
for (const [name, code] of sources) {
  device.pushErrorScope('validation');
  const module = device.createShaderModule({ code });
  const { messages } = await module.getCompilationInfo();
  const error = await device.popErrorScope();
  const bad = messages.filter((m) => m.type === 'error');
  if (error || bad.length > 0) {
    failed += 1;
    console.log(name, bad.map((m) => `${m.lineNum}: ${m.message}`).join('; ') || error.message);
  }
}
console.log(failed === 0 ? `${sources.length} kernels pass` : `${failed} of ${sources.length} kernels fail`);
device.destroy();
process.exit(failed === 0 ? 0 : 1);
