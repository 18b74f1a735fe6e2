// Steps: a bar for each, why the device idles, how launches queued.
import type { App } from "../app.ts";
import { sections } from "../blocks.ts";
import { type Child, h, legend, para, titled } from "../dom.ts";
import * as numbers from "../numbers.ts";
import { bar, curve, type Part } from "../plot.ts";
import { idleIn, uses } from "../timeline/range.ts";

const STEPS = 12;
type Row = [label: string, parts: Part[], text: string, href: string | null];
const AHEAD = "its end was not recorded; before the first step, ";

/** One bar per step: compute, exposed communication and copies, idle by cause; as it runs, as recorded, each. */
export function stepBars(app: App): Child {
  const { report, sentences } = app;
  if (!report.devices.length) return null;
  const own = report.as_it_runs;
  const rows: Row[] = [];
  if (own && own.busy_us !== null)
    rows.push([
      "as it runs",
      [
        usePart(app, "compute", `busy: ${numbers.time(own.busy_us)}`, own.busy_us / own.step_us.median),
        ...own.idle.map(({ cause, idle_us }) => idlePart(app, cause, idle_us, own.step_us.median)),
      ],
      `${numbers.percent(own.busy_us / own.step_us.median)} of ${numbers.time(own.step_us.median)}`,
      null,
    ]);
  report.devices.forEach((device, index) => {
    const bar = sentences.devices[index]!;
    const causes = report.idle.filter(
      (row) => row.rank === device.rank && row.device === device.device && row.idle_us > 0,
    );
    rows.push([
      bar.label,
      [
        ...bar.segments
          .filter(({ use }) => use !== "idle")
          .map(({ use, share }) =>
            usePart(app, use, `${sentences.uses[use]}: ${numbers.percent(share)}`, share),
          ),
        ...causes.map(({ cause, idle_us }) => idlePart(app, cause, idle_us, device.window_us || 1)),
      ],
      `${numbers.percent(bar.busy)} of ${numbers.time(bar.time_us)}`,
      app.store ? "#timeline" : null,
    ]);
  });
  if (app.store && report.devices.length === 1) rows.push(...recordedSteps(app));
  const drawn = rows.flatMap(([, parts]) => parts);
  const idle = [...report.idle, ...(own?.idle ?? [])].filter((row) => row.idle_us > 0);
  const causes = [...new Set(idle.map((row) => row.cause))];
  return titled(
    report.steps.length ? "One step" : "The recorded time",
    `busy, as a share of ${sentences.window}; hatched: idle`,
    h(
      "div.bars",
      rows.map(([label, parts, text, href]) => [
        href ? h("a", { class: "label", href }, label) : h("span.label", label),
        bar(`${label}: ${parts.map((part) => part.label).join("; ")}`, parts, rows.length > 3),
        h("span.number", text),
      ]),
    ),
    legend(
      [
        ...Object.entries(sentences.uses)
          .map(([use, name]): [string, string] => [app.palette.use(use), name])
          .filter(([colour]) => drawn.some((part) => !part.idle && part.share > 0 && part.colour === colour)),
        ...causes.map((cause): [string, string] => [app.palette.cause(cause), `idle: ${cause}`]),
      ],
      drawn.some((part) => part.label.startsWith(AHEAD)) &&
        "of the last step, whose end was not recorded, as much of what ran before the first",
    ),
  );
}

const usePart = (app: App, use: string, label: string, share: number): Part => ({
  ...{ label, share },
  colour: app.palette.use(use),
});

const idlePart = (app: App, cause: string, us: number, whole: number, where = ""): Part => ({
  label: `${where}idle, ${cause}: ${numbers.time(us)}`,
  share: us / whole,
  colour: app.palette.cause(cause),
  idle: true,
});

/** Each step as recorded. Of a last one whose end was not, as much of what came before the first stands in. */
function recordedSteps(app: App): Row[] {
  const store = app.store!,
    origin = store.timeline.origin_ns / 1000;
  return app.report.steps.slice(0, STEPS).map((step, _, [leading]) => {
    const first = (leading!.start_us - origin) * 1000;
    const from = (step.start_us - origin) * 1000,
      whole = step.duration_us * 1000 || 1;
    const own = parts(app, step.rank, from, from + whole, whole);
    const rest = whole * (1 - own.reduce((sum, part) => sum + part.share, 0));
    const ahead = rest > whole / 1000 ? parts(app, step.rank, first - rest, first, whole, AHEAD) : [];
    return [
      step.name,
      [...own, ...ahead],
      `${numbers.percent(step.busy_us / (step.duration_us || 1))} of ${numbers.time(step.duration_us)}`,
      app.timeHref(from, from + whole, {}, 0.03),
    ];
  });
}

/** What an interval of time was used for, as shares of a step. */
function parts(app: App, rank: number, from: number, to: number, whole: number, where = ""): Part[] {
  const busy = Object.entries(uses(app.store!, rank, from, to));
  const idle = [...idleIn(app.store!, (one) => one.rank === rank, from, to)].sort((a, b) => b[1] - a[1]);
  return [
    ...busy.map(([use, ns]) =>
      usePart(app, use, `${where}${app.sentences.uses[use]}: ${numbers.ns(ns)}`, ns / whole),
    ),
    ...idle.map(([cause, ns]) => idlePart(app, cause, ns / 1000, whole / 1000, where)),
  ];
}

export function steps(app: App): Child {
  const { blocks, timing } = app.sentences;
  return [
    h("h1", "Steps"),
    timing && para("lead", timing),
    sections(app, blocks.steps!),
    queues(app),
    sections(app, blocks.devices!),
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
        rows.map(({ rank, device, queue, depth_max }) =>
          curve(
            `launches queued on rank ${rank} GPU ${device}`,
            queue.map((point) => [point.start_us, point.depth_max]),
            `${rows.length > 1 ? `rank ${rank} GPU ${device}, ` : ""}at most ${numbers.count(depth_max)}`,
          ),
        ),
      ),
    )
  );
}
