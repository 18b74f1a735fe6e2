// The first screen: what is slow, whether to believe it, and what to change.
import type { App } from "../app.ts";
import { copyButton, h, type Child } from "../dom.ts";
import { categoryDoor } from "../doors.ts";
import { shorten } from "../names.ts";
import * as numbers from "../numbers.ts";
import { bar } from "../plot.ts";
import { format } from "../route.ts";
import { share, table } from "../table.ts";
import { compileParts } from "./compile.ts";
import { critical, findings } from "./findings.ts";
import { idle, stepBars } from "./step.ts";

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
    report.compilation && !report.devices.length && compileParts(app, report.compilation),
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
          cell: (row) => categoryDoor(app, row.category),
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
          value: (row: string[]) => row[at] || null,
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
