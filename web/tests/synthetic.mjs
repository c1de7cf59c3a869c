// Checkpoints of a wanted size with random weights, written below target/site-made.

import { closeSync, existsSync, mkdirSync, openSync, renameSync, writeFileSync, writeSync } from 'node:fs';
import path from 'node:path';
import { ROOT } from './harness.mjs';

const HIDDEN = 1024;
const INNER = 4096;
const VOCABULARY = 512;
/** Bytes of one feed-forward block in bf16. */
const BLOCK_BYTES = 2 * 2 * HIDDEN * INNER;

function config(blocks) {
  return {
    architectures: ['NemotronHForCausalLM'],
    model_type: 'nemotron_h',
    torch_dtype: 'bfloat16',
    vocab_size: VOCABULARY,
    hidden_size: HIDDEN,
    hybrid_override_pattern: `M${'-'.repeat(blocks)}`,
    num_hidden_layers: blocks + 1,
    mamba_num_heads: 8,
    mamba_head_dim: 64,
    ssm_state_size: 64,
    n_groups: 2,
    conv_kernel: 4,
    num_attention_heads: 4,
    num_key_value_heads: 2,
    head_dim: 64,
    intermediate_size: INNER,
    max_position_embeddings: 4096,
    use_conv_bias: true,
    tie_word_embeddings: false,
  };
}

/** Names and shapes of all tensors. */
function tensors(blocks) {
  const [inner, groups, state, heads] = [512, 2, 64, 8];
  const channels = inner + 2 * groups * state;
  const mixer = (name) => `backbone.layers.0.mixer.${name}`;
  const list = [
    ['backbone.embeddings.weight', [VOCABULARY, HIDDEN]],
    ['backbone.layers.0.norm.weight', [HIDDEN]],
    [mixer('in_proj.weight'), [inner + channels + heads, HIDDEN]],
    [mixer('conv1d.weight'), [channels, 1, 4]],
    [mixer('conv1d.bias'), [channels]],
    [mixer('A_log'), [heads]],
    [mixer('D'), [heads]],
    [mixer('dt_bias'), [heads]],
    [mixer('norm.weight'), [inner]],
    [mixer('out_proj.weight'), [HIDDEN, inner]],
  ];
  for (let layer = 1; layer <= blocks; layer += 1) {
    list.push([`backbone.layers.${layer}.norm.weight`, [HIDDEN]]);
    list.push([`backbone.layers.${layer}.mixer.up_proj.weight`, [INNER, HIDDEN]]);
    list.push([`backbone.layers.${layer}.mixer.down_proj.weight`, [HIDDEN, INNER]]);
  }
  list.push(['backbone.norm_f.weight', [HIDDEN]], ['lm_head.weight', [VOCABULARY, HIDDEN]]);
  return list;
}

/** Bytes of bf16 numbers of about +-0.01, the same each time. */
function weights(bytes, seed) {
  const words = new Uint16Array(Math.min(bytes, 1 << 20) / 2);
  let state = seed * 2654435761 + 1;
  for (let i = 0; i < words.length; i += 1) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    words[i] = 0x3c00 | (state >>> 25) | ((state & 1) << 15);
  }
  return Buffer.from(words.buffer);
}

/** Makes a checkpoint of about `megabytes` unless it is there; its URL on the test server. */
export async function synthetic(name, megabytes) {
  const folder = path.join(ROOT, 'target/site-made', name);
  const file = path.join(folder, 'model.safetensors');
  if (!existsSync(file)) {
    const blocks = Math.round((megabytes * 1e6) / BLOCK_BYTES);
    mkdirSync(folder, { recursive: true });
    writeFileSync(path.join(folder, 'config.json'), JSON.stringify(config(blocks)));
    let at = 0;
    const header = {};
    for (const [tensor, shape] of tensors(blocks)) {
      const bytes = 2 * shape.reduce((a, b) => a * b, 1);
      header[tensor] = { dtype: 'BF16', shape, data_offsets: [at, (at += bytes)] };
    }
    const text = Buffer.from(JSON.stringify(header));
    const output = openSync(`${file}.part`, 'w');
    const length = Buffer.alloc(8);
    length.writeBigUInt64LE(BigInt(text.length));
    writeSync(output, length);
    writeSync(output, text);
    Object.values(header).forEach(({ data_offsets: [start, end] }, seed) => {
      const block = weights(end - start, seed);
      for (let left = end - start; left > 0; left -= block.length) writeSync(output, block.subarray(0, Math.min(left, block.length)));
    });
    closeSync(output);
    renameSync(`${file}.part`, file);
  }
  return `/made/${name}`;
}
