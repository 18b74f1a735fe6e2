// The report's document, as src/kinetoscope/report/document declares it: what the page reads of it.
import type { Compilation } from "./compilation.ts";
import type { MemoryPeak } from "./memory/document.ts";
import type { Ranks } from "./ranks/document.ts";

export interface EvidenceRow {
  text: string;
  start_us: number;
  end_us: number;
  events: number[];
}
export interface FindingRow {
  rule: string;
  severity: string;
  title: string;
  saving_us: number;
  saving_bytes: number;
  saving_basis: string;
  evidence: EvidenceRow[];
  advice: string;
  source: string | null;
  saving_on_critical_path: boolean;
  share_of_step: number;
  snippet: string | null;
  proof: string | null;
  ranks: number[];
  measured_saving_us: number | null;
  measured_interval_us: [number, number] | null;
  measured_basis: string | null;
  measured_verdict: string | null;
  saving_alone_us: number;
  saving_low_us: number;
  saving_high_us: number;
  also: string | null;
}
export interface Replay {
  rank: number;
  step_us: number;
  error: number;
  joint_saving_us: number | null;
  critical_path: { text: string; us: number; events: number[]; count: number }[];
}
export interface DeviceRow {
  rank: number;
  device: number;
  name: string;
  window_us: number;
  busy_us: number;
  busy_fraction: number;
  compute_us: number;
  copy_us: number;
  communication_us: number;
  exposed_communication_us: number;
  idle_us: number;
  device_time_us: number;
  kernel_launches: number;
  unattributed_kernels: number;
  launches_without_kernel: number;
}
export interface CategoryRow {
  category: string;
  device_time_us: number;
  share_of_device_time: number;
  share_of_window: number;
  launches: number;
  distinct_kernels: number;
}
export interface KernelRow {
  name: string;
  short_name: string;
  category: string;
  launches: number;
  device_time_us: number;
  share_of_device_time: number;
  mean_us: number;
  median_us: number;
  min_us: number;
  max_us: number;
  p90_us: number;
  ops: { name: string; launches: number; device_time_us: number }[];
  kind: string;
  graph: string | null;
  source: string | null;
  bytes: number | null;
  flops: number | null;
  speed_of_light: number | null;
  costed_launches: number;
}
export interface StepRow {
  name: string;
  start_us: number;
  duration_us: number;
  host_duration_us: number;
  busy_us: number;
  launches: number;
  device_time_us: number;
  rank: number;
  phase: string;
}
export interface OpRow {
  name: string;
  kind: string;
  calls: number;
  host_self_us: number;
  host_total_us: number;
  device_self_us: number;
  device_total_us: number;
}
export interface IdleRow {
  device: number;
  rank: number;
  cause: string;
  idle_us: number;
  share_of_window: number;
  text: string | null;
}
export interface AsItRuns {
  rank: number;
  step_us: { median: number; p10: number; p90: number; low: number; high: number; n: number };
  busy_fraction: number | null;
  busy_us: number | null;
  idle: { cause: string; idle_us: number }[];
  basis: string;
  waiting: { data_us: number; sync_us: number; gc_us: number } | null;
  recorded_step_us: number | null;
  inflation: number | null;
}
export interface GraphRow {
  graph: string;
  hash: string;
  compile_id: string | null;
  direction: string;
  calls: number;
  host_us: number;
  launches: number;
  device_time_us: number;
  share_of_device_time: number;
  categories: { category: string; launches: number; device_time_us: number; share_of_graph: number }[];
}
export interface LaunchRow {
  rank: number;
  device: number;
  depth_max: number;
  queue: { start_us: number; depth_max: number }[];
}
/** `line` is a frame: `file.py(12): function`. */
export interface HeldRow {
  op: string | null;
  module: string | null;
  line: string | null;
  bytes: number;
  allocations: number;
}
/** What NVML said of a device at a moment of the run. */
export interface ClockRow {
  rank: number;
  device: number;
  moment: string;
  sm_clock_mhz: number | null;
  max_sm_clock_mhz: number | null;
  memory_clock_mhz: number | null;
  temperature_c: number | null;
  power_w: number | null;
  throttle_reasons: string[];
}
export interface MemoryRow {
  rank: number;
  device: number;
  peak_allocated_bytes: number;
  peak_reserved_bytes: number | null;
  peak_us: number;
  peak_op: string | null;
  first_allocated_bytes: number;
  last_allocated_bytes: number;
  allocations: number;
  turned_over_bytes: number;
  reserved_growths: number;
  held_at_peak: HeldRow[];
  held_from_before_bytes: number | null;
  over_time: { start_us: number; allocated_bytes: number; reserved_bytes: number | null }[];
}
export interface AllocatorRow {
  rank: number;
  name: string;
  calls: number;
  calls_in_window: number;
  host_us: number;
  host_us_in_window: number;
}
export interface SourceRow {
  path: string;
  bytes: number;
  events: number;
  rank: number;
  complete: boolean;
  notes: string[];
}

export interface Lane {
  label: string;
  kind: string;
  rank: number;
  device: number | null;
  first: number;
  count: number;
}
export interface Name {
  name: string;
  kind: string;
  category: string;
}
export interface Launched {
  grid?: string;
  block?: string;
  registers?: number;
  shared_memory_bytes?: number;
  warps_per_sm?: number;
  occupancy_percent?: number;
  bytes?: number;
  collective?: string;
}
export interface Column {
  name: string;
  length: number;
  planes: number;
  deltas: boolean;
}
export interface Timeline {
  origin_ns: number;
  lanes: Lane[];
  names: Name[];
  texts: string[];
  launched: Launched[];
  columns: Column[];
  idle_devices: [number, number][];
  causes: string[];
  marks: { rank: number; event: number; row: number }[];
  left_out: string | null;
}
export interface GeneratedModule {
  graph: number;
  code: string;
  post_grad: string | null;
  kernels: { name: string; first_line: number; last_line: number }[];
}
/** Measured alone; nanoseconds. */
export interface BenchedKernel {
  name: string;
  bytes: number;
  cold_ns: [number, number, number] | null;
  samples: number;
  hot_ns: number | null;
  configuration: Record<string, number> | null;
  registers: number | null;
  spills: number | null;
  reference: string | null;
  could_win_ns: number | null;
  error: string | null;
}
export interface Page {
  benches?: BenchedKernel[];
  timeline: Timeline | null;
  program: { path: string; text: string }[];
  clocks: ClockRow[];
  modules: GeneratedModule[];
  frame_texts: { frame: number; name: string; text: string }[];
  roofs: { device: string; bandwidth: number; peaks: Record<string, number> }[];
  meanings?: Record<string, string>;
}
export interface Report {
  kinetoscope: string;
  sources: SourceRow[];
  environment: Record<string, unknown>;
  devices: DeviceRow[];
  categories: CategoryRow[];
  kernels: KernelRow[];
  steps: StepRow[];
  ops: OpRow[];
  findings: FindingRow[];
  health: { verdict: string; notes: { code: string; text: string; gravity: string }[] };
  idle: IdleRow[];
  as_it_runs: AsItRuns | null;
  launching: LaunchRow[];
  memory: MemoryRow[];
  allocator: AllocatorRow[];
  memory_peaks: MemoryPeak[];
  ranks: Ranks | null;
  graphs: GraphRow[];
  compilation: Compilation | null;
  unread: string[];
  page?: Page;
  replay?: Replay | null;
}
export interface Bar {
  label: string;
  time_us: number;
  busy: number;
  segments: { use: string; share: number }[];
}
export interface Sentences {
  title: string[];
  verdict: string;
  notes: string[];
  headline: string;
  timing: string;
  compilation: string;
  window: string;
  savings: string[];
  together: string;
  measured: string[];
  graph_labels: string[];
  idle: IdleRow[];
  devices: Bar[];
  phase_heads: string[];
  phases: string[][];
  pace: [string, string][];
  commands: { line: string; shows: string }[];
  peaks: [string, string][];
  fits: (string | null)[];
  given_back: string[][];
  memory_parts: Record<string, string>;
  memory_colours: Record<string, string>;
  ranks: string[];
  lateness: Record<string, string>;
  operations: Record<string, string>;
  uses: Record<string, string>;
  use_colours: Record<string, string>;
  category_colours: Record<string, string>;
  cause_colours: Record<string, string>;
}
