// What the allocator held, and what it asked of the driver.
import type { App } from "../app.ts";
import { inline, sections, stackOf } from "../blocks.ts";
import type { MemoryPeak } from "../document.ts";
import { chip, chips, type Child, h, link, list, para, titled } from "../dom.ts";
import { area } from "../memory/area.ts";
import { blocks } from "../memory/blocks.ts";
import { allocatorHistory } from "../memory/history.ts";
import { allocations } from "../memory/instant.ts";
import * as numbers from "../numbers.ts";
import { curve } from "../plot.ts";
import { format, replace, type Route } from "../links.ts";

export function memory(app: App, { parameters }: Route): Child {
  const { memory, memory_peaks: peaks } = app.report,
    { sentences } = app;
  const failed = peaks.findIndex((peak) => peak.failed_bytes !== null); // why anybody looks here
  const at = Math.min(Number(parameters.get("peak") ?? Math.max(0, failed)) || 0, peaks.length - 1);
  return [
    h("h1", peaks.length ? app.sentences.peaks[at]!.join(" ") : "Memory"),
    peaks.length > 1 &&
      chips(
        "devices and moments",
        app.sentences.peaks.map(([title], place) =>
          chip(format(["memory"], { peak: place }), `${title} ${when(peaks[place]!)}`, place === at),
        ),
      ),
    peaks.length > 0 && history(app, at, parameters),
    !memory.length &&
      !peaks.length &&
      para(
        "lead",
        "The recording has no memory events of a device: they come with `kinetoscope run --memory`.",
      ),
    memory.map((row, place) =>
      titled(
        `${peaks.length ? "By the trace's events: rank" : "Rank"} ${row.rank} GPU ${row.device}`,
        "",
        curve(
          "memory allocated",
          row.over_time.map((point) => [point.start_us, point.allocated_bytes]),
          `allocated, at most ${numbers.size(row.peak_allocated_bytes)}`,
        ),
        sections(app, sentences.blocks[`memory ${place}`]!),
      ),
    ),
    sections(app, sentences.blocks.allocator!),
  ];
}

/** One device at its peak, by the allocator's history. */
function history(app: App, at: number, parameters: Route["parameters"]): Child {
  const peak = app.report.memory_peaks[at]!;
  const [block, moment, event] = ["block", "at", "event"].map((name) =>
    Number(parameters.get(name) ?? NaN),
  ) as [number, number, number];
  const done = app.report.page?.allocator.find((one) => one.peak === at);
  const known = (number: number): number | null => (Number.isNaN(number) ? null : number);
  const keep = (place: Record<string, number | null>): void =>
    replace(format(["memory"], { peak: at, ...place }));
  const drawn = blocks(app, peak, (block) => keep({ block }));
  if (peak.blocks[block]) requestAnimationFrame(() => drawn.select(block));
  return [
    peak.notes.length > 0 && list("notes", peak.notes),
    failure(app, peak),
    sections(app, app.sentences.blocks[`answer ${at}`]!),
    peak.over_time.length > 1 &&
      titled(
        "Over time",
        "what tensors held, by role",
        area(app, peak, known(moment), (at) => keep({ at })),
      ),
    peak.blocks.length > 1 &&
      peak.history_us > 0 &&
      titled(
        "Allocations",
        `the ${numbers.count(peak.blocks.length)} largest, each as high as it is large; the line is the most that was held`,
        drawn.element,
        h(
          "details",
          { id: "allocations-by-time" },
          h("summary", "All of them as a list, by time"),
          allocations(app, peak, (place) => {
            drawn.select(place);
            drawn.element.scrollIntoView({ block: "start" });
          }),
        ),
      ),
    sections(app, app.sentences.blocks[`peak ${at}`]!),
    done && allocatorHistory(app, peak, done, known(event), (event) => keep({ event })),
  ];
}

/** The moment that a chip stands for. */
function when(peak: MemoryPeak): string {
  if (peak.moment === "out of memory") return "when the allocation failed";
  return peak.moment === "snapshot" ? "at the snapshot" : "at the peak";
}

/** Findings are of the moment that failed, where one did. */
function failure(app: App, peak: MemoryPeak): Child {
  const failed = app.report.memory_peaks.some((one) => one.failed_bytes !== null);
  return [
    peak.failed_stack.length > 0 &&
      h(
        "details.failed",
        h("summary", `Who asked for the ${numbers.size(peak.failed_bytes!)} that could not be had`),
        stackOf(app, peak.failed_stack),
      ),
    (peak.failed_bytes !== null || !failed) && frees(app),
  ];
}

/** The findings on memory, as doors. */
function frees(app: App): Child {
  const rows = app.report.findings.flatMap(({ saving_bytes: saves, title }, finding) => {
    const door = link(format(["overview"], { finding }), title);
    return saves ? [h("li", door, " ", h("small", inline(app, app.sentences.savings[finding]!)))] : [];
  });
  return (
    rows.length > 0 &&
    titled("What would free it", "each by itself; they do not add up", h("ul", { id: "memory-frees" }, rows))
  );
}
