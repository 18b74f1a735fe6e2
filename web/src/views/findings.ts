// What to change: the findings, and what the step waits for.
import type { App } from "../app.ts";
import type { FindingRow } from "../document.ts";
import { copyButton, h, type Child } from "../dom.ts";
import { sourceDoor } from "../doors.ts";
import { shorten } from "../names.ts";
import * as numbers from "../numbers.ts";

export function findings(app: App): Child {
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

/** What the step waits for, one thing after another, by the replay. */
export function critical(app: App): Child {
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
