// What the allocator held, and what it asked of the driver.
import type { App } from "../app.ts";
import type { MemoryRow } from "../document.ts";
import { frameDoor } from "../doors.ts";
import { h, titled, type Child } from "../dom.ts";
import { area } from "../memory/area.ts";
import { blocks } from "../memory/blocks.ts";
import type { HolderRow, MemoryPeak } from "../document.ts";
import { failure } from "../memory/failure.ts";
import { lineOf, stackOf } from "../memory/owner.ts";
import { shorten } from "../names.ts";
import * as numbers from "../numbers.ts";
import { bar, curve } from "../plot.ts";
import { format, replace, type Route } from "../route.ts";
import { share, table } from "../table.ts";

export function memory(app: App, { parameters }: Route): Child {
  const { memory, allocator, memory_peaks: peaks } = app.report;
  const failed = peaks.findIndex((peak) => peak.failed_bytes !== null); // why anybody looks here
  const at = Math.min(Number(parameters.get("peak") ?? Math.max(0, failed)) || 0, peaks.length - 1);
  return [
    h("h1", {}, peaks.length ? app.sentences.peaks[at]!.join(" ") : "Memory"),
    peaks.length > 1 &&
      h(
        "nav",
        { class: "chips", "aria-label": "devices and moments" },
        app.sentences.peaks.map(([title], place) =>
          h(
            "a",
            { href: format(["memory"], { peak: place }), "aria-current": place === at && "true" },
            `${title} ${when(peaks[place]!)}`,
          ),
        ),
      ),
    peaks.length > 0 && history(app, at, Number(parameters.get("block") ?? NaN)),
    !memory.length &&
      !peaks.length &&
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
          h(
            "h2",
            {},
            `${peaks.length ? "By the trace's events: rank" : "Rank"} ${row.rank} GPU ${row.device}`,
          ),
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

/** One device at its peak, by the allocator's history. */
function history(app: App, at: number, block: number): Child {
  const peak = app.report.memory_peaks[at]!;
  const drawn = blocks(app, peak, (place) => replace(format(["memory"], { peak: at, block: place })));
  if (peak.blocks[block]) requestAnimationFrame(() => drawn.select(block));
  return [
    peak.notes.length > 0 &&
      h(
        "ul",
        { class: "notes" },
        peak.notes.map((note) => h("li", {}, note)),
      ),
    failure(app, peak),
    peak.over_time.length > 1 && titled("Over time", "what tensors held, by role", area(app, peak)),
    peak.blocks.length > 1 &&
      peak.history_us > 0 &&
      titled(
        "Allocations",
        `the ${numbers.count(peak.blocks.length)} largest, each as high as it is large; the line is the most that was held`,
        drawn.element,
      ),
    parts(app, peak),
    holders(app, peak),
    growth(app, peak),
    givenBack(app, peak, app.sentences.given_back[at]!),
    app.sentences.fits[at] && titled("What fits", "", h("p", {}, app.sentences.fits[at])),
    h(
      "p",
      { class: "soft" },
      isTimeline(peak) ? "From torch's profiler: " : "Torch's own viewer of memory reads ",
      h("code", {}, peak.snapshot),
      ".",
    ),
  ];
}

/** The profiler's, which knows what was held and not what was reserved. */
function isTimeline(peak: MemoryPeak): boolean {
  return peak.moment === "timeline";
}

const allocations = {
  label: "allocations",
  value: (row: { allocations: number }) => row.allocations,
  cell: (row: { allocations: number }) => (row.allocations ? numbers.count(row.allocations) : "–"),
};

function parts(app: App, peak: MemoryPeak): Child {
  const kind = isTimeline(peak) ? "held" : "reserved";
  return titled(
    "What it was",
    `${when(peak)}; sums to the ${numbers.size(peak.reserved_bytes)} ${kind}`,
    bar(
      `the ${kind} memory by what it was`,
      peak.parts.map((row) => ({
        label: `${row.part}: ${numbers.size(row.bytes)}`,
        share: row.share_of_reserved,
        colour: app.palette.memory(row.part),
      })),
    ),
    table(
      peak.parts,
      [
        {
          label: "part",
          value: (row) => row.part,
          cell: (row) => [
            h("span", { class: "dot", style: { background: app.palette.memory(row.part) } }),
            row.part,
            app.sentences.memory_parts[row.part] && h("small", {}, app.sentences.memory_parts[row.part]!),
          ],
        },
        { label: "bytes", value: (row) => row.bytes, cell: (row) => numbers.size(row.bytes) },
        {
          label: isTimeline(peak) ? "of what was held" : "of the reserved",
          value: (row) => row.share_of_reserved,
          cell: (row) => share(row.share_of_reserved, app.palette.memory(row.part)),
        },
        ...(isTimeline(peak) ? [] : [allocations]),
      ],
      { id: "memory-parts", label: "what the memory was" },
    ),
    peak.outside_bytes !== null &&
      h(
        "p",
        { class: "soft" },
        `Beside it ${numbers.size(peak.outside_bytes)} of the device are held outside of the allocator, at the snapshot: by other processes, the driver, and libraries of their own.`,
      ),
  );
}

/** The moment that parts and owners are of. */
function when(peak: MemoryPeak): string {
  if (peak.moment === "out of memory") return "when the allocation failed";
  return peak.moment === "snapshot" ? "at the snapshot" : "at the peak";
}

function holders(app: App, peak: MemoryPeak): Child {
  if (!peak.holders.length) return null;
  const whole = peak.requested_bytes || 1,
    most = Math.max(...peak.holders.map((row) => row.bytes)) / whole;
  return titled(
    "Who had it",
    `${when(peak)}; sums to the ${numbers.size(peak.requested_bytes)} held`,
    table(
      peak.holders,
      [
        {
          label: "whose",
          value: (row) => row.owner,
          cell: (row) => holder(app, row),
        },
        { label: "bytes", value: (row) => row.bytes, cell: (row) => numbers.size(row.bytes) },
        {
          label: "of what was held",
          value: (row) => row.bytes,
          cell: (row) => share(row.bytes / whole, app.palette.memory(row.role), most),
        },
        {
          label: "role",
          value: (row) => row.role,
          cell: (row) => [
            h("span", { class: "dot", style: { background: app.palette.memory(row.role) } }),
            row.role,
          ],
        },
        {
          label: "line",
          value: (row) => row.line,
          cell: (row) => (row.line === null ? "–" : lineOf(app, row.line, row.stack)),
        },
        { label: "op", value: (row) => row.op, cell: (row) => h("span", { class: "mono" }, row.op ?? "–") },
        allocations,
        {
          label: "largest",
          value: (row) => row.largest_bytes,
          cell: (row) => numbers.size(row.largest_bytes),
        },
      ],
      {
        id: "memory-holders",
        label: "who had the memory",
        most: 30,
        filter: (row) => `${row.owner} ${row.role} ${row.line ?? ""} ${row.op ?? ""}`,
      },
    ),
  );
}

/** The stack that asked for the largest is folded behind the name. */
function holder(app: App, row: HolderRow): Child {
  const name = shorten(row.owner, 80);
  return row.stack.length ? h("details", {}, h("summary", {}, name), stackOf(app, row.stack)) : name;
}

function growth(app: App, peak: MemoryPeak): Child {
  return (
    peak.growth.length > 0 &&
    titled(
      "What grows with every step",
      "",
      table(
        peak.growth,
        [
          {
            label: "line",
            value: (row) => row.line ?? row.owner,
            cell: (row) => (row.line === null ? row.owner : lineOf(app, row.line, [])),
          },
          { label: "role", value: (row) => row.role, cell: (row) => row.role },
          {
            label: "held by",
            value: (row) => row.names.join(", ") || null,
            cell: (row) => row.names.join(", "),
          },
          { label: "what grows", value: (row) => row.grows, cell: (row) => row.grows },
          {
            label: "a step",
            value: (row) => row.bytes_per_step,
            cell: (row) => numbers.size(row.bytes_per_step),
          },
          { label: "by now", value: (row) => row.bytes, cell: (row) => numbers.size(row.bytes) },
        ],
        { id: "memory-growth", label: "what grows with every step" },
      ),
    )
  );
}

function givenBack(app: App, peak: MemoryPeak, why: string[]): Child {
  const rows = peak.given_back.map((row, at) => ({ ...row, why: why[at]! }));
  return (
    rows.length > 0 &&
    titled(
      "What was given back to the driver",
      "each time waits for the device",
      table(
        rows,
        [
          {
            label: "line",
            value: (row) => row.line,
            cell: (row) => [row.line === null ? "–" : lineOf(app, row.line, []), h("small", {}, row.why)],
          },
          { label: "times", value: (row) => row.times, cell: (row) => numbers.count(row.times) },
          { label: "segments", value: (row) => row.segments, cell: (row) => numbers.count(row.segments) },
          { label: "bytes", value: (row) => row.bytes, cell: (row) => numbers.size(row.bytes) },
        ],
        { id: "memory-given-back", label: "what was given back to the driver" },
      ),
    )
  );
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
