// Of the report's document, ranks compared.

export interface CollectiveRow {
  group: string;
  group_size: number | null;
  groups: number;
  kind: string;
  bytes: number | null;
  meetings: number;
  incomplete: number;
  transfer_us: number | null;
  waiting_us: number;
  skew_median_us: number | null;
  skew_max_us: number | null;
  last_rank: number | null;
  last_times: number;
  told: number;
  algorithm_gbps: number | null;
  bus_gbps: number | null;
  share_of_link: number | null;
  uneven: number | null;
  heaviest_rank: number | null;
}
export interface RankRow {
  rank: number;
  host: string;
  window_us: number;
  busy_us: number;
  compute_us: number;
  waiting_us: number;
  exposed_waiting_us: number;
  exposed_transfer_us: number;
  bubble_us: number;
  blamed_us: number;
  cause: string | null;
  detail: string;
  damages: string[];
}
export interface PaceRow {
  ranks: string;
  count: number;
  took_us: (number | null)[];
  own_us: (number | null)[];
  slowest: (number | null)[];
  slowest_us: (number | null)[];
  blamed_us: number[];
}
export interface Paces {
  steps: string[];
  took_us: (number | null)[];
  own_us: (number | null)[];
  rows: PaceRow[];
}
export interface Meeting {
  kind: string;
  group: string;
  step: string;
  bytes: number | null;
  ranks: number[];
  arrived_us: number[];
  left_us: number[];
  waiting_us: number[];
}
export interface Ranks {
  here: string;
  count: number;
  clocks: {
    ranks: string;
    host: string;
    ahead_us: number;
    drift_ppm: number;
    residual_us: number | null;
  }[];
  collectives: CollectiveRow[];
  late: { rank: number | null; cause: string | null; detail: string; waited_us: number; meetings: number }[];
  worst: RankRow[];
  spread: {
    what: string;
    least: number;
    p10: number;
    median: number;
    p90: number;
    most: number;
    least_rank: number;
    most_rank: number;
  }[];
  alike: {
    ranks: string;
    count: number;
    compute: number;
    exposed_waiting: number;
    exposed_transfer: number;
    idle: number;
    blamed_us: number;
  }[];
  paces: Paces;
  meetings: Meeting[];
  ranks: RankRow[];
  inspected: CollectiveRow[];
  ideal: {
    by_stage: Record<string, number>;
    by_operation: Record<string, number>;
  } | null;
}
