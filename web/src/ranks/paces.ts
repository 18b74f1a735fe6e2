// Ranks by steps, as colours: what a step took a rank against what it took the others.
import type { PaceRow, Paces } from "../document.ts";

export const MEASURES = ["own", "took", "late"] as const;
export type Measure = (typeof MEASURES)[number];

export const ABOUT: Record<Measure, [label: string, about: string]> = {
  own: [
    "own time",
    "a step less what nothing hid of its waiting for other ranks, against the median of its step",
  ],
  took: ["whole step", "a step with all its waiting, against the median of its step"],
  late: ["lateness", "what all other ranks waited for it"],
};

/** A row's figure in a column, in microseconds; of several ranks their median, or the slowest one's. */
export function value(row: PaceRow, measure: Measure, column: number, slowest = false): number | null {
  if (measure === "late") return row.blamed_us[column] ?? null;
  if (measure === "own" && slowest) return row.slowest_us[column] ?? null;
  return (measure === "own" ? row.own_us : row.took_us)[column] ?? null;
}

/** Above the median of its step, as a share of that; of lateness, as a share of the step. */
export function excess(
  paces: Paces,
  row: PaceRow,
  measure: Measure,
  column: number,
  slowest = false,
): number | null {
  const usual = (measure === "own" ? paces.own_us : paces.took_us)[column] ?? null;
  const found = value(row, measure, column, slowest);
  if (usual === null || found === null) return null;
  return measure === "late" ? found / (row.count * usual || 1) : (found - usual) / (usual || 1);
}

const LEAST = 0.05; // a difference that has the full colour at least: noise is not to look like a finding

/** The excess that has the full colour. */
export function fullest(paces: Paces, measure: Measure): number {
  let most = LEAST;
  for (const row of paces.rows)
    paces.steps.forEach((_, column) => {
      for (const slowest of [false, true])
        most = Math.max(most, Math.abs(excess(paces, row, measure, column, slowest) ?? 0));
    });
  return most;
}
