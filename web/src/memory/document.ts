// Of the report's document, what the allocator's history says.

export interface MemoryBlock {
  start_us: number | null;
  end_us: number | null;
  address: number;
  bytes: number;
  role: string;
  owner: string;
  line: string | null;
  name: string | null;
  module: string | null;
  op: string | null;
  stack: number;
}
export interface HolderRow {
  role: string;
  owner: string;
  line: string | null;
  allocations: number;
  bytes: number;
  largest_bytes: number;
  op: string | null;
  stack: string[];
}
export interface GrowthRow {
  line: string | null;
  owner: string;
  role: string;
  bytes_per_step: number;
  bytes: number;
  names: string[];
  grows: string;
}
export interface GivenBackRow {
  cause: "room" | "empty_cache";
  line: string | null;
  times: number;
  steps: number;
  segments: number;
  bytes: number;
  again_bytes: number;
}
/** Times are microseconds since the history began. */
export interface MemoryPeak {
  rank: number;
  device: number;
  moment: "recorded steps" | "history" | "out of memory" | "snapshot" | "timeline";
  failed_bytes: number | null;
  failed_stack: string[];
  peak_us: number;
  history_us: number;
  requested_bytes: number;
  reserved_bytes: number;
  outside_bytes: number | null;
  total_bytes: number | null;
  parts: { part: string; bytes: number; share_of_reserved: number; allocations: number }[];
  holders: HolderRow[];
  roles: string[];
  over_time: { time_us: number; reserved_bytes: number; bytes: number[] }[];
  blocks: MemoryBlock[];
  stacks: string[][];
  traced_us: number | null;
  growth: GrowthRow[];
  given_back: GivenBackRow[];
  snapshot: string;
  notes: string[];
}
