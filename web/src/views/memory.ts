// What the allocator held, and what it asked of the driver.
import type { App } from "../app.ts";
import type { MemoryRow } from "../document.ts";
import { frameDoor } from "../doors.ts";
import { h, type Child } from "../dom.ts";
import { shorten } from "../names.ts";
import * as numbers from "../numbers.ts";
import { curve } from "../plot.ts";
import { share, table } from "../table.ts";

export function memory(app: App): Child {
  const { memory, allocator } = app.report;
  return [
    h("h1", {}, "Memory"),
    !memory.length &&
      h(
        "p",
        { class: "lead" },
        "The recording has no memory events of a device: they come with `kinetoscope run --memory`.",
      ),
    memory.map((row) =>
      h(
        "section",
        {},
        h(
          "header",
          {},
          h("h2", {}, `Rank ${row.rank} GPU ${row.device}`),
          h(
            "p",
            {},
            `peak ${numbers.size(row.peak_allocated_bytes)}${row.peak_reserved_bytes ? ` of ${numbers.size(row.peak_reserved_bytes)} reserved` : ""}`,
          ),
        ),
        row.over_time.length > 1 &&
          curve(
            "memory allocated",
            row.over_time.map((point) => point.start_us),
            row.over_time.map((point) => point.allocated_bytes),
            `allocated, at most ${numbers.size(row.peak_allocated_bytes)}`,
          ),
        h(
          "dl",
          { class: "facts" },
          (
            [
              ["peak at", row.peak_us ? peakDoor(app, row.peak_us) : "–"],
              ["op at the peak", row.peak_op ?? "–"],
              ["at the start", numbers.size(row.first_allocated_bytes)],
              ["at the end", numbers.size(row.last_allocated_bytes)],
              ["allocations", numbers.count(row.allocations)],
              ["turned over", numbers.size(row.turned_over_bytes)],
              ["times more was reserved", numbers.count(row.reserved_growths)],
            ] as [string, Child][]
          ).map(([label, value]) => [h("dt", {}, label), h("dd", {}, value)]),
        ),
        held(app, row),
      ),
    ),
    allocator.length > 0 &&
      h(
        "section",
        {},
        h("header", {}, h("h2", {}, "Calls of the driver"), h("p", {}, "that take or give back memory")),
        table(
          allocator,
          [
            {
              label: "call",
              value: (row) => row.name,
              cell: (row) => h("span", { class: "mono" }, row.name),
            },
            { label: "calls", value: (row) => row.calls, cell: (row) => numbers.count(row.calls) },
            {
              label: "in the recorded time",
              value: (row) => row.calls_in_window,
              cell: (row) => numbers.count(row.calls_in_window),
            },
            { label: "host time", value: (row) => row.host_us, cell: (row) => numbers.time(row.host_us) },
          ],
          { label: "allocator calls" },
        ),
      ),
  ];
}

/** What lived at the peak, by what had allocated it. */
function held(app: App, row: MemoryRow): Child {
  const whole = row.peak_allocated_bytes || 1,
    before = row.held_from_before_bytes;
  return (
    row.held_at_peak.length > 0 && [
      h("h3", {}, "Held at the peak"),
      before !== null &&
        h(
          "p",
          { class: "soft" },
          `${numbers.size(before)} of it, ${numbers.percent(before / whole)}, was allocated before the recording began; this is the rest.`,
        ),
      table(
        row.held_at_peak,
        [
          {
            label: "allocated by",
            value: (one) => one.op,
            cell: (one) => h("span", { class: "mono" }, one.op ?? "no op"),
          },
          { label: "module", value: (one) => one.module, cell: (one) => shorten(one.module ?? "–", 60) },
          { label: "line", value: (one) => one.line, cell: (one) => frameDoor(app, one.line) },
          { label: "bytes", value: (one) => one.bytes, cell: (one) => numbers.size(one.bytes) },
          {
            label: "of the peak",
            value: (one) => one.bytes,
            cell: (one) => share(one.bytes / whole, "var(--accent)", row.held_at_peak[0]!.bytes / whole),
          },
          {
            label: "allocations",
            value: (one) => one.allocations,
            cell: (one) => numbers.count(one.allocations),
          },
        ],
        {
          id: `held-${row.rank}-${row.device}`,
          label: "what was held at the peak",
          most: 40,
          filter: (one) => `${one.op ?? ""} ${one.module ?? ""} ${one.line ?? ""}`,
        },
      ),
    ]
  );
}

function peakDoor(app: App, us: number): Child {
  const href = app.traceTimeHref(us - 500, us + 500);
  return href ? h("a", { class: "door", href }, "show it in the timeline") : numbers.time(us);
}
