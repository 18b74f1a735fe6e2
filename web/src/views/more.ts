// Ops, steps, and what was read.
import type { App } from "../app.ts";
import type { DeviceClock, DeviceRow } from "../document.ts";
import { h, titled, type Child } from "../dom.ts";
import { shorten } from "../names.ts";
import * as numbers from "../numbers.ts";
import { curve } from "../plot.ts";
import { format } from "../route.ts";
import { figure, share, table, type ColumnOf } from "../table.ts";

const NOT_HOST = new Set(["user_annotation", "kernel", "memcpy", "memset", "device annotation"]);

export function ops(app: App): Child {
  const rows = app.report.ops
    .filter((row) => !NOT_HOST.has(row.kind))
    .sort((a, b) => b.host_self_us - a.host_self_us);
  const whole = rows.reduce((sum, row) => sum + row.host_self_us, 0) || 1;
  const device = app.report.devices.length > 0;
  return [
    h("h1", {}, "Ops"),
    h(
      "section",
      {},
      h("header", {}, h("p", {}, "self: the op's own time, without the ops it called")),
      table(
        rows,
        [
          {
            label: "op",
            value: (row) => row.name,
            cell: (row) => {
              const meaning = app.report.page?.meanings?.[row.name];
              return row.device_total_us > 0 && app.store
                ? h(
                    "a",
                    {
                      class: "door mono",
                      href: format(["kernels"], { by: "op", in: row.name }),
                      title: meaning,
                    },
                    shorten(row.name, 110),
                  )
                : h("span", { class: "mono", title: meaning ?? row.name }, shorten(row.name, 110));
            },
          },
          {
            label: "host self",
            value: (row) => row.host_self_us,
            cell: (row) => numbers.time(row.host_self_us),
          },
          {
            label: "share of self",
            value: (row) => row.host_self_us,
            cell: (row) =>
              share(row.host_self_us / whole, "var(--accent)", (rows[0]?.host_self_us ?? 1) / whole),
          },
          {
            label: "host total",
            value: (row) => row.host_total_us,
            cell: (row) => numbers.time(row.host_total_us),
          },
          ...(device
            ? [
                {
                  label: "device self",
                  value: (row: (typeof rows)[number]) => row.device_self_us,
                  cell: (row: (typeof rows)[number]) => numbers.time(row.device_self_us),
                },
                {
                  label: "device total",
                  value: (row: (typeof rows)[number]) => row.device_total_us,
                  cell: (row: (typeof rows)[number]) => numbers.time(row.device_total_us),
                },
              ]
            : []),
          { label: "calls", value: (row) => row.calls, cell: (row) => numbers.count(row.calls) },
        ],
        { id: "ops", label: "ops", filter: (row) => row.name },
      ),
    ),
  ];
}

export function steps(app: App): Child {
  const { report } = app;
  const devices = (rank: number) => Math.max(report.devices.filter((row) => row.rank === rank).length, 1);
  return [
    h("h1", {}, "Steps"),
    report.as_it_runs && h("p", { class: "lead" }, app.sentences.timing),
    h(
      "section",
      {},
      table(
        report.steps,
        [
          {
            label: "step",
            value: (row) => String(Math.round(row.start_us)).padStart(20),
            cell: (row) => {
              const href = app.traceTimeHref(row.start_us, row.start_us + row.duration_us);
              return href ? h("a", { class: "door", href }, row.name) : row.name;
            },
          },
          { label: "phase", value: (row) => row.phase, cell: (row) => row.phase },
          figure("rank", (row) => (isAlone(app) ? null : row.rank), String),
          {
            label: "duration",
            value: (row) => row.duration_us,
            cell: (row) => numbers.time(row.duration_us),
          },
          {
            label: "on the host",
            value: (row) => row.host_duration_us,
            cell: (row) => numbers.time(row.host_duration_us),
          },
          {
            label: "busy",
            value: (row) => row.busy_us,
            cell: (row) =>
              share(
                row.duration_us ? row.busy_us / (row.duration_us * devices(row.rank)) : 0,
                app.palette.use("compute"),
              ),
          },
          { label: "launches", value: (row) => row.launches, cell: (row) => numbers.count(row.launches) },
        ],
        { id: "steps", label: "steps" },
      ),
    ),
    ranks(app),
    queues(app),
    clocks(app),
  ];
}

function queues(app: App): Child {
  const rows = app.report.launching.filter((row) => row.queue.length > 1);
  return (
    rows.length > 0 &&
    titled(
      "Launches queued",
      "made by the host and not begun by the device: where there are none, it waits for the host",
      h(
        "div",
        { class: rows.length > 1 ? "multiples" : null },
        rows.map((row) =>
          curve(
            `launches queued on rank ${row.rank} GPU ${row.device}`,
            row.queue.map((point) => point.start_us),
            row.queue.map((point) => point.depth_max),
            `${rows.length > 1 ? `rank ${row.rank} GPU ${row.device}, ` : ""}at most ${numbers.count(row.depth_max)}`,
          ),
        ),
      ),
    )
  );
}

const isAlone = (app: App): boolean => new Set(app.report.sources.map((row) => row.rank)).size < 2;

/** What the devices' clocks did while it was recorded, where that was read. */
function clocks(app: App): Child {
  const rows = app.report.page?.clocks ?? [];
  return (
    rows.length > 0 &&
    titled(
      "Clocks and power",
      "as the driver told them at moments of the run",
      table(
        rows,
        [
          { label: "when", value: (row) => row.moment, cell: (row) => row.moment },
          figure("rank", (row) => (isAlone(app) ? null : row.rank), String),
          figure(
            "SM clock",
            (row) => row.sm_clock_mhz,
            (mhz) => numbers.rate(mhz * 1e6, "Hz").replace("/s", ""),
          ),
          figure("of its most", (row) => clockShare(row), numbers.percent),
          figure(
            "memory clock",
            (row) => row.memory_clock_mhz,
            (mhz) => numbers.rate(mhz * 1e6, "Hz").replace("/s", ""),
          ),
          figure(
            "power",
            (row) => row.power_w,
            (watts) => `${Math.round(watts)} W`,
          ),
          figure(
            "temperature",
            (row) => row.temperature_c,
            (degrees) => `${degrees} °C`,
          ),
          {
            label: "held back by",
            value: (row) => row.throttle_reasons.join(", ") || null,
            cell: (row) => row.throttle_reasons.join(", ") || "–",
          },
        ],
        { id: "clocks", label: "clocks and power" },
      ),
    )
  );
}

const clockShare = (row: DeviceClock): number | null =>
  row.sm_clock_mhz && row.max_sm_clock_mhz ? row.sm_clock_mhz / row.max_sm_clock_mhz : null;

/** What each rank's device did with its window. */
function ranks(app: App): Child {
  const rows = app.report.devices;
  const time = (label: string, of: (row: DeviceRow) => number): ColumnOf<DeviceRow> => ({
    label,
    value: of,
    cell: (row) => numbers.time(of(row)),
  });
  return (
    rows.length > 1 &&
    titled(
      "Devices",
      "busy: share of each one's window",
      table(
        rows,
        [
          {
            label: "device",
            value: (row) => `${row.rank}`.padStart(6),
            cell: (row) => `rank ${row.rank} GPU ${row.device}`,
          },
          { label: "window", value: (row) => row.window_us, cell: (row) => numbers.time(row.window_us) },
          {
            label: "busy",
            value: (row) => row.busy_fraction,
            cell: (row) => share(row.busy_fraction, app.palette.use("compute")),
          },
          time("idle", (row) => row.idle_us),
          time("compute", (row) => row.compute_us),
          time("communication", (row) => row.communication_us),
          time("exposed", (row) => row.exposed_communication_us),
          {
            label: "launches",
            value: (row) => row.kernel_launches,
            cell: (row) => numbers.count(row.kernel_launches),
          },
        ],
        { id: "devices", label: "devices" },
      ),
    )
  );
}

/** A value of JSON, a line each of what it holds. */
function written(value: unknown): string[] {
  if (Array.isArray(value))
    return value.map((one) =>
      typeof one === "object"
        ? written(one)
            .map((line) => line.replace("=", " "))
            .join(" · ")
        : String(one),
    );
  if (typeof value !== "object" || value === null) return [String(value)];
  return Object.entries(value).map(([key, one]) => `${key}=${written(one).join(".")}`);
}

export function about(app: App): Child {
  const { report } = app;
  const notes = report.health.notes;
  return [
    h("h1", {}, "What was read, and where it was recorded"),
    h(
      "section",
      {},
      table(
        report.sources,
        [
          { label: "file", value: (row) => row.path, cell: (row) => h("span", { class: "mono" }, row.path) },
          { label: "rank", value: (row) => row.rank, cell: (row) => row.rank },
          { label: "size", value: (row) => row.bytes, cell: (row) => numbers.size(row.bytes) },
          { label: "events", value: (row) => row.events, cell: (row) => numbers.count(row.events) },
          {
            label: "notes",
            value: (row) => row.notes.join(),
            cell: (row) => [
              row.complete ? "whole" : "incomplete",
              row.notes.map((note) => h("small", {}, note)),
            ],
          },
        ],
        { label: "files" },
      ),
    ),
    notes.length > 0 &&
      h(
        "section",
        {},
        h("header", {}, h("h2", {}, "Health"), h("p", {}, report.health.verdict)),
        h(
          "ul",
          {},
          notes.map((note) => h("li", {}, `${note.code}: ${note.text}`)),
        ),
      ),
    h(
      "section",
      {},
      h("header", {}, h("h2", {}, "Environment")),
      h(
        "dl",
        { class: "facts wide" },
        Object.entries(report.environment).map(([key, value]) => [
          h("dt", {}, key.replaceAll("_", " ")),
          h(
            "dd",
            { class: "mono" },
            written(value).map((line) => h("div", {}, line)),
          ),
        ]),
      ),
    ),
    h(
      "p",
      { class: "soft" },
      `kinetoscope ${report.kinetoscope}. Busy is the union of device intervals over all streams of a device, inside the recorded steps; device time is their plain sum.`,
    ),
  ];
}
