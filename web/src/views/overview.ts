// The first screen: what is slow, whether to believe it, and what to change.
import type { App } from "../app.ts";
import { copyButton, h, type Child } from "../dom.ts";
import type { FindingRow } from "../document.ts";
import { place, shorten } from "../names.ts";
import * as numbers from "../numbers.ts";
import { bar, type Part } from "../plot.ts";
import { format } from "../route.ts";
import { share, table } from "../table.ts";

export function overview(app: App): Child {
  const { report, sentences } = app;
  return [
    h(
      "ul",
      { class: "crumbs" },
      sentences.title.map((part) => h("li", {}, part)),
    ),
    verdict(app),
    h("h1", {}, sentences.headline),
    sentences.timing && h("p", { class: "lead" }, sentences.timing),
    sentences.compilation && h("p", { class: "lead" }, h("a", { href: "#compile" }, sentences.compilation)),
    cards(app),
    stepBars(app),
    findings(app),
    critical(app),
    idle(app),
    categories(app),
    phases(app),
    pace(app),
    commands(app),
    report.unread.map((problem) => h("p", { class: "soft" }, problem)),
  ];
}

function verdict(app: App): Child {
  const good = app.report.health.verdict === "good";
  return [
    h(
      "p",
      { class: `verdict ${good ? "" : "doubt"}` },
      h("span", { "aria-hidden": "true" }, good ? "✓ " : "⚠ "),
      app.sentences.verdict,
    ),
    app.sentences.notes.length > 0 &&
      h(
        "ul",
        { class: "notes" },
        app.sentences.notes.map((note) => h("li", {}, note)),
      ),
  ];
}

function cards(app: App): Child {
  const { report } = app,
    own = report.as_it_runs,
    [device] = report.devices;
  if (!device) return null;
  const time = report.categories.reduce((sum, row) => sum + row.device_time_us, 0);
  const one = report.devices.length === 1 ? device : null;
  const card = (value: string, label: string, href: string) =>
    h("a", { class: "card", href }, h("b", {}, value), h("span", {}, label));
  return h(
    "div",
    { class: "cards" },
    own && card(numbers.time(own.step_us.median), `a step, as it runs (${own.step_us.n} timed)`, "#steps"),
    own &&
      own.busy_fraction !== null &&
      card(numbers.percent(own.busy_fraction), "busy, as it runs", "#timeline"),
    one &&
      card(
        numbers.percent(one.busy_fraction),
        `busy, of ${numbers.time(one.window_us)}${own ? " as recorded" : ""}`,
        "#timeline",
      ),
    card(numbers.time(time), "device time, summed", "#kernels"),
    card(
      numbers.count(report.devices.reduce((sum, row) => sum + row.kernel_launches, 0)),
      "launches on the device",
      "#kernels",
    ),
    card(numbers.count(report.kernels.length), "distinct kernels", "#kernels"),
    one &&
      one.communication_us > 0 &&
      card(
        numbers.time(one.exposed_communication_us),
        `exposed of ${numbers.time(one.communication_us)} communication`,
        format(["kernels"], { q: "communication" }),
      ),
  );
}

/** One bar a step: compute, exposed communication and copies, idle by cause; as it runs, as recorded, each. */
function stepBars(app: App): Child {
  const { report, sentences } = app;
  if (!report.devices.length) return null;
  const own = report.as_it_runs;
  const rows: [string, Part[], string, string | null][] = [];
  if (own && own.busy_us !== null)
    rows.push([
      "as it runs",
      [
        {
          label: `busy: ${numbers.time(own.busy_us)}`,
          share: own.busy_us / own.step_us.median,
          colour: app.palette.use("compute"),
        },
        ...own.idle.map((row) => ({
          label: `idle, ${row.cause}: ${numbers.time(row.idle_us)}`,
          share: row.idle_us / own.step_us.median,
          colour: app.palette.cause(row.cause),
        })),
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
          .filter((part) => part.use !== "idle")
          .map((part) => ({
            label: `${sentences.uses[part.use]}: ${numbers.percent(part.share)}`,
            share: part.share,
            colour: app.palette.use(part.use),
          })),
        ...causes.map((row) => ({
          label: `idle, ${row.cause}: ${numbers.time(row.idle_us)}`,
          share: row.idle_us / (device.window_us || 1),
          colour: app.palette.cause(row.cause),
        })),
      ],
      `${numbers.percent(bar.busy)} of ${numbers.time(bar.time_us)}`,
      app.store ? "#timeline" : null,
    ]);
  });
  if (app.store && report.devices.length === 1) rows.push(...recordedSteps(app));
  const causes = [
    ...new Set(
      [...report.idle, ...(own?.idle ?? [])].filter((row) => row.idle_us > 0).map((row) => row.cause),
    ),
  ];
  return h(
    "section",
    {},
    h(
      "header",
      {},
      h("h2", {}, report.steps.length ? "A step" : "The recorded time"),
      h("p", {}, `share of ${sentences.window} with work on the device`),
    ),
    h(
      "div",
      { class: "bars" },
      rows.map(([label, parts, text, href]) => [
        href ? h("a", { class: "label", href }, label) : h("span", { class: "label" }, label),
        bar(`${label}: ${parts.map((part) => part.label).join("; ")}`, parts, rows.length > 3),
        h("span", { class: "number" }, text),
      ]),
    ),
    h(
      "ul",
      { class: "legend" },
      Object.entries(sentences.uses)
        .filter(([use]) => use !== "idle")
        .map(([use, name]) =>
          h("li", {}, h("span", { class: "dot", style: { background: app.palette.use(use) } }), name),
        ),
      causes.map((cause) =>
        h(
          "li",
          {},
          h("span", { class: "dot", style: { background: app.palette.cause(cause) } }),
          `idle: ${cause}`,
        ),
      ),
    ),
  );
}

function recordedSteps(app: App): [string, Part[], string, string | null][] {
  const store = app.store!,
    origin = store.timeline.origin_ns / 1000;
  return app.report.steps.slice(0, 12).map((step) => {
    const from = (step.start_us - origin) * 1000,
      to = from + step.duration_us * 1000;
    const idle = new Map<string, number>();
    for (const one of store.idle.filter((device) => device.rank === step.rank))
      one.start.forEach((start, at) => {
        const inside = Math.min(one.end[at]!, to) - Math.max(start, from);
        if (inside > 0)
          idle.set(
            store.causes[one.cause[at]!]!,
            (idle.get(store.causes[one.cause[at]!]!) ?? 0) + inside / 1000,
          );
      });
    const whole = step.duration_us || 1;
    return [
      step.name,
      [
        {
          label: `busy: ${numbers.time(step.busy_us)}`,
          share: step.busy_us / whole,
          colour: app.palette.use("compute"),
        },
        ...[...idle]
          .sort((a, b) => b[1] - a[1])
          .map(([cause, time]) => ({
            label: `idle, ${cause}: ${numbers.time(time)}`,
            share: time / whole,
            colour: app.palette.cause(cause),
          })),
      ],
      `${numbers.percent(step.busy_us / whole)} of ${numbers.time(step.duration_us)}`,
      app.timeHref(from, to, {}, 0.03),
    ];
  });
}

function findings(app: App): Child {
  const { report } = app,
    { replay } = report;
  if (!report.findings.length) return null;
  const joint = replay
    ? `all of them together ${numbers.time(replay.joint_saving_us)} a step, replayed`
    : "what to change, the largest saving first";
  return h(
    "section",
    { id: "findings" },
    h("header", {}, h("h2", {}, "Findings"), h("p", {}, joint)),
    report.findings.map((row, index) => finding(app, row, index)),
  );
}

function finding(app: App, row: FindingRow, index: number): HTMLElement {
  const alone = row.saving_alone_us ?? null;
  const measured = app.sentences.measured[index];
  const kernels = app.report.kernels
    .filter(
      (one) =>
        one.name.length > 8 &&
        (row.title.includes(one.short_name) ||
          row.evidence.some((item) => item.text.includes(one.short_name))),
    )
    .slice(0, 4);
  return h(
    "article",
    { class: `finding ${row.severity}`, data: { rule: row.rule } },
    h(
      "div",
      { class: "finding-head" },
      h("h3", {}, row.title),
      h(
        "div",
        { class: "saves" },
        app.sentences.savings[index],
        alone !== null &&
          Math.abs(alone - row.saving_us) > 0.5 &&
          h("small", {}, `alone ${numbers.time(alone)}`),
      ),
    ),
    h("p", {}, row.advice, " ", row.source && sourceDoor(app, row.source)),
    row.saving_us > 0 && h("p", { class: "soft" }, `Estimate: ${row.saving_basis}.`),
    measured
      ? h(
          "p",
          { class: `measured ${row.measured_verdict ?? ""}` },
          `${measured[0]!.toUpperCase()}${measured.slice(1)}.`,
          row.measured_basis && h("small", {}, ` By ${row.measured_basis}.`),
        )
      : row.proof &&
          h(
            "p",
            { class: "soft" },
            "To measure it: ",
            h("code", {}, row.proof),
            " ",
            copyButton(row.proof, "the command"),
          ),
    row.snippet && h("pre", {}, row.snippet),
    row.evidence.length > 0 &&
      h(
        "ul",
        {},
        row.evidence.slice(0, 6).map((item, at) => {
          const href =
            item.end_us > item.start_us || item.events.length
              ? app.traceTimeHref(item.start_us, item.end_us, { f: `${index}.${at}` })
              : null;
          return h(
            "li",
            {},
            href ? h("a", { class: "door", href, title: "show it in the timeline" }, item.text) : item.text,
          );
        }),
      ),
    kernels.length > 0 &&
      h(
        "p",
        { class: "soft" },
        "Kernels: ",
        kernels.map((one) => [
          h("a", { class: "door mono", href: app.kernelHref(one.name) }, shorten(one.short_name, 60)),
          " ",
        ]),
      ),
  );
}

export function sourceDoor(app: App, source: string): HTMLElement {
  const [, file, line] = /^(.*):(\d+)$/.exec(source) ?? [null, source, null];
  return h(
    "a",
    { class: "door mono", href: app.lineHref(file!, line === null ? null : Number(line)), title: source },
    place(file!, line === null ? null : Number(line)),
  );
}

/** What the step waits for, one thing after another, by the replay. */
function critical(app: App): Child {
  const { replay } = app.report;
  return (
    replay &&
    replay.critical_path.length > 0 &&
    h(
      "section",
      {},
      h(
        "header",
        {},
        h("h2", {}, "Critical path"),
        h(
          "p",
          {},
          `of the step replayed: ${numbers.time(replay.step_us)}${replay.error === null ? "" : `, off by ${numbers.percent(Math.abs(replay.error))}`}`,
        ),
      ),
      h(
        "ol",
        { class: "chain" },
        replay.critical_path
          .slice(0, 20)
          .map((link) => h("li", {}, shorten(link.text, 160), h("small", {}, ` ${numbers.time(link.us)}`))),
      ),
    )
  );
}

function idle(app: App): Child {
  const rows = app.sentences.idle;
  return (
    rows.length > 0 &&
    h(
      "section",
      {},
      h(
        "header",
        {},
        h("h2", {}, "Idle, and why"),
        h("p", {}, "share of the window; a click leads to the longest"),
      ),
      h(
        "div",
        { class: "bars" },
        rows.map((row) => [
          h(
            "a",
            {
              class: "label",
              href: longestIdle(app, row.cause) ?? "#timeline",
              title: app.report.page?.meanings?.[row.cause],
            },
            row.cause,
          ),
          bar(
            `${row.cause}: ${numbers.percent(row.share_of_window)}`,
            [
              {
                label: row.text ?? row.cause,
                share: row.share_of_window,
                colour: app.palette.cause(row.cause),
              },
            ],
            true,
          ),
          h(
            "span",
            { class: "number" },
            numbers.percent(row.share_of_window),
            h("small", {}, ` ${numbers.time(row.idle_us)}`),
          ),
        ]),
      ),
    )
  );
}

function longestIdle(app: App, cause: string): string | null {
  let best = 0,
    href: string | null = null;
  for (const idle of app.store?.idle ?? [])
    idle.start.forEach((start, at) => {
      const length = idle.end[at]! - start;
      if (app.store!.causes[idle.cause[at]!] === cause && length > best)
        [best, href] = [length, app.timeHref(start, idle.end[at]!, {}, 0.6)];
    });
  return href;
}

function categories(app: App): Child {
  const rows = app.report.categories;
  if (!rows.length) return null;
  const href = (name: string) => format(["kernels"], { category: name });
  return h(
    "section",
    {},
    h(
      "header",
      {},
      h("h2", {}, "GPU time by category"),
      h(
        "p",
        {},
        `share of ${numbers.time(rows.reduce((sum, row) => sum + row.device_time_us, 0))} of device time`,
      ),
    ),
    bar(
      "device time by category",
      rows.map((row) => ({
        label: `${row.category}: ${numbers.percent(row.share_of_device_time)}`,
        share: row.share_of_device_time,
        colour: app.palette.category(row.category),
        href: href(row.category),
      })),
    ),
    table(
      rows,
      [
        {
          label: "category",
          value: (row) => row.category,
          cell: (row) => [
            h("span", { class: "dot", style: { background: app.palette.category(row.category) } }),
            h(
              "a",
              { class: "door", href: href(row.category), title: app.report.page?.meanings?.[row.category] },
              row.category,
            ),
          ],
        },
        {
          label: "share",
          value: (row) => row.share_of_device_time,
          cell: (row) =>
            share(
              row.share_of_device_time,
              app.palette.category(row.category),
              rows[0]!.share_of_device_time,
            ),
        },
        {
          label: "device time",
          value: (row) => row.device_time_us,
          cell: (row) => numbers.time(row.device_time_us),
        },
        {
          label: "of window",
          value: (row) => row.share_of_window,
          cell: (row) => numbers.percent(row.share_of_window),
        },
        { label: "launches", value: (row) => row.launches, cell: (row) => numbers.count(row.launches) },
        {
          label: "kernels",
          value: (row) => row.distinct_kernels,
          cell: (row) => numbers.count(row.distinct_kernels),
        },
      ],
      { label: "categories", id: "categories" },
    ),
  );
}

function phases(app: App): Child {
  const { phases, phase_heads } = app.sentences;
  return (
    phases.length > 0 &&
    h(
      "section",
      {},
      h("header", {}, h("h2", {}, "Phases"), h("p", {}, "unlike steps apart; busy: share of the median")),
      table(
        phases,
        phase_heads.map((label, at) => ({
          label,
          value: (row: string[]) => row[at]!,
          cell: (row: string[]) => shorten(row[at]!, 120),
        })),
        { label: "phases" },
      ),
    )
  );
}

function pace(app: App): Child {
  return (
    app.sentences.pace.length > 0 &&
    h(
      "section",
      {},
      h("header", {}, h("h2", {}, "Steps, launches, memory")),
      h(
        "dl",
        { class: "facts wide" },
        app.sentences.pace.map(([what, text]) => [
          h(
            "dt",
            {},
            h("a", { href: what === "memory" || what === "allocator" ? "#memory" : "#steps" }, what),
          ),
          h("dd", {}, text),
        ]),
      ),
    )
  );
}

function commands(app: App): Child {
  return h(
    "section",
    {},
    h("header", {}, h("h2", {}, "Next"), h("p", {}, "type one of these")),
    h(
      "dl",
      { class: "facts wide" },
      app.sentences.commands.map((command) => [
        h("dt", {}, command.shows),
        h("dd", {}, h("code", {}, command.line), " ", copyButton(command.line, "the command")),
      ]),
    ),
  );
}
