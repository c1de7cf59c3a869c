/** Bytes of memory, by what they are for. */
export interface Ledger {
  weights: number;
  state: number;
  kv: number;
  scratch: number;
}

/** An adapter that the browser offers. */
export interface DeviceReport {
  index: number;
  name: string;
  vendor?: string;
  architecture?: string;
  device?: string;
  description?: string;
  kind: 'discrete' | 'integrated' | 'virtual' | 'software' | 'other';
  backend: string;
  driver: string;
  limits: {
    buffer_bytes: number;
    binding_bytes: number;
    storage_buffers: number;
    workgroup_bytes: number;
    invocations: number;
    workgroups: number;
  };
  features: {
    f16: boolean;
    subgroups: [number, number] | null;
    cooperative_matrices: boolean;
    timestamps: boolean;
    integer_dot: boolean;
  };
  /** Kernel variants that run on it. */
  variants: string[];
  verdict: 'chosen' | { passed: string } | { rejected: string };
}

export interface Layer {
  kinds: ('mamba2' | 'attention' | 'mlp' | 'moe')[];
  /** Bytes of its weights as stored. */
  bytes: number;
}

/** What is loaded. */
export interface About {
  backend: 'wgpu' | 'cpu';
  device: DeviceReport | null;
  vocabulary: number;
  hidden: number;
  /** Longest sequence in tokens. */
  context: number;
  layers: Layer[];
  tensors: number;
  stored_bytes: number;
  /** What the plan said that the model would take. */
  plan: Ledger;
  /** Whether it has a tokenizer, and a chat template. */
  text: boolean;
  chat: boolean;
  /** Sampling where a request says nothing. */
  defaults: { temperature: number; top_k: number; top_p: number; min_p: number } | null;
  loading: {
    /** Bytes of weights that came from the source, and from the cache. */
    received: number;
    cached: number;
    /** What did not go as usual, such as a cache that is full. */
    notes: string[];
    /** For each cached file, SHA-256 over the SHA-256 of its blocks. */
    hashes: Record<string, string | null>;
    /** Bytes on the device once the model was there, and of the module. */
    held: Ledger;
    wasmBytes: number;
  };
}

export interface Progress {
  received: number;
  cached: number;
  /** Bytes of the files that hold tensors. */
  total: number;
  /** The tensor that was loaded last, how many are, and their bytes on the device. */
  tensor: string;
  tensors: number;
  loaded: number;
}

export interface OpenOptions {
  onProgress?: (progress: Progress) => void;
  /** `webgpu` unless said otherwise; the processor is never used unasked. */
  backend?: 'webgpu' | 'cpu';
  /** Longest sequence in tokens. */
  context?: number;
  /** Most tokens of one step; a stop waits for the end of a step. */
  rows?: number;
  /** Keep fetched weights in the origin's private file system. */
  cache?: boolean;
  /** Compile the kernels once the model is there, in the background: calls wait for it, the first reply then does not. */
  warmUp?: boolean;
}

export interface Message {
  role: 'system' | 'user' | 'assistant' | 'tool';
  content: string;
  reasoning_content?: string;
}

export interface GenerateOptions {
  maxTokens?: number;
  /** Always the likeliest token. */
  greedy?: boolean;
  temperature?: number;
  topK?: number;
  topP?: number;
  minP?: number;
  repetitionPenalty?: number;
  presencePenalty?: number;
  frequencyPenalty?: number;
  logitBias?: Record<number, number>;
  seed?: number;
  /** Texts that end the reply and are not shown. */
  stop?: string[];
  /** Whether the model may think before it answers a conversation. */
  reasoning?: boolean;
  /** Go on after end tokens. */
  ignoreEnd?: boolean;
}

export interface Usage {
  /** Prompt tokens that were run, and those whose state was there from the last reply. */
  prefill_tokens: number;
  cached_tokens: number;
  prefill_seconds: number;
  prefill_tokens_per_second: number | null;
  decode_tokens: number;
  decode_seconds: number;
  decode_tokens_per_second: number | null;
}

export interface Delta {
  content: string;
  reasoning: string;
  tokens: number[];
  /** With the last delta. */
  done?: { stop: 'stop' | 'length' | 'cancelled'; usage: Usage; memory: Ledger };
}

export interface Session {
  readonly about: About;
  /** Writes on from a text, or answers a conversation. Leaving the loop stops the reply. */
  generate(input: string | Message[], options?: GenerateOptions): AsyncGenerator<Delta, void, void>;
  /** Ends the reply within one step. */
  stop(): Promise<void>;
  /** Logits after each token. */
  logits(tokens: ArrayLike<number>): Promise<Float32Array[]>;
  encode(text: string): Promise<number[]>;
  memory(): Promise<{ device: Ledger; wasmBytes: number }>;
  /** Frees the model and its worker. */
  close(): void;
}

export interface Outcome {
  op: string;
  case: string;
  fault: string | null;
}

/** Opens a checkpoint: the URL of its folder, the files of a folder, or a folder's handle. */
export function openModel(
  source: string | URL | FileList | File[] | FileSystemDirectoryHandle,
  options?: OpenOptions,
): Promise<Session>;

/** The adapters that the browser offers, empty where there is none. */
export function deviceReport(): Promise<DeviceReport[]>;

/** Holds a back end to the reference arithmetic, op by op. */
export function selfcheck(options?: {
  backend?: 'webgpu' | 'cpu';
  /** Ops whose name holds this. */
  filter?: string;
  onOutcome?: (outcome: Outcome) => void;
  signal?: AbortSignal;
}): Promise<{ outcomes: Outcome[] }>;
