// The document's part on torch.compile: what the page reads of it.
export interface SourceLine {
  file: string;
  line: number;
  code: string;
  function: string | null;
}
export interface Frame {
  index: number;
  compile_id: string;
  rank: number;
  generation: number;
  function: string | null;
  file: string | null;
  line: number | null;
  status: string;
  attempts: number;
  restarts: string[];
  compile_s: number;
  dynamo_s: number;
  aot_s: number;
  inductor_s: number;
  codegen_s: number;
  triton_s: number;
  autotune_s: number;
  cudagraphs_s: number;
  backward_s: number;
  backend: string;
  mode: string;
  guards: number | null;
  cudagraphs: string;
  failure: string | null;
  device_time_us: number | null;
  launches: number | null;
  speed_of_light: number | null;
  share_of_device_time: number | null;
}
/** Seconds on the wall clock, from the first stretch of all. */
export interface Stretch {
  frame: number;
  phase: string;
  start_s: number;
  duration_s: number;
}
export interface GraphBreak {
  frame: number | null;
  compile_id: string | null;
  file: string | null;
  line: number | null;
  function: string | null;
  code: string | null;
  reason: string;
  explanation: string;
  hints: string[];
  url: string | null;
  count: number;
  cost_s: number;
  crossings: number | null;
  idle_us: number | null;
  extra_launches: number | null;
  extra_launches_per_step: number | null;
}
export interface Recompilation {
  frame: number;
  compile_id: string;
  function: string | null;
  file: string | null;
  line: number | null;
  reasons: { of: string; guard: string; code: string | null; file: string | null; line: number | null }[];
  cost_s: number;
  advice: string;
  limit_hit: boolean;
  count: number;
}
export interface Failure {
  frame: number;
  compile_id: string;
  type: string;
  reason: string;
  explanation: string;
  hints: string[];
  effect: string;
  file: string | null;
  line: number | null;
  code: string | null;
}
export interface Graph {
  index: number;
  frame: number;
  compile_id: string;
  direction: string;
  aot_id: string | null;
  ops: number;
  op_counts: Record<string, number>;
  key: string | null;
  cache: string;
  kernels: number;
  fusion: {
    rounds: { before: number; after: number }[];
    not_fused: { why: string; count: number; examples: string[] }[];
  } | null;
  device_time_us: number | null;
  launches: number | null;
  speed_of_light: number | null;
  saved: { bytes: number | null; donated: boolean | null }[];
  saved_bytes: number | null;
  rematerialised: { spared_bytes: number | null }[];
  rematerialised_bytes: number | null;
}
export interface CompiledKernel {
  name: string;
  symbol: string;
  category: string;
  graph: number;
  frame: number;
  compile_id: string;
  direction: string;
  aten_ops: string[];
  source: SourceLine[];
  calls: number;
  bytes: number | null;
  flops: number | null;
  config: string | null;
  registers: number | null;
  spills: number | null;
  shared_memory_bytes: number | null;
  device_time_us: number | null;
  launches: number | null;
  speed_of_light: number | null;
  bound: string | null;
  bytes_per_s: number | null;
  flops_per_s: number | null;
  dtype: string | null;
}
export interface LineTime {
  file: string;
  line: number;
  code: string;
  device_time_us: number;
  own_us: number;
  kernels: number;
  share_of_device_time: number;
  speed_of_light: number | null;
}
export interface Compilation {
  torch: string | null;
  frames: Frame[];
  stretches: Stretch[];
  graph_breaks: GraphBreak[];
  recompilations: Recompilation[];
  graphs: Graph[];
  kernels: CompiledKernel[];
  failures: Failure[];
  compile_s: number;
  glossary: Record<string, string>;
  autotune: {
    frame: number;
    compile_id: string;
    op: string;
    shape: string | null;
    choices: number | null;
    best: string | null;
    best_ms: number | null;
    best_triton: string | null;
    best_triton_ms: number | null;
  }[];
  source_lines?: LineTime[];
  notes: string[];
}
