// What to change: the findings.
import type { App } from "../app.ts";
import { inline } from "../blocks.ts";
import type { FindingRow } from "../document.ts";
import { type Child, copyButton, h, link, list, monoLink, para, soft } from "../dom.ts";
import { sourceDoor } from "../links.ts";
import { shorten } from "../names.ts";
import * as numbers from "../numbers.ts";

const NOTES = "Notes on the profiler's own cost, which the program does not pay";

export function findings(app: App): Child {
  const rows = app.report.findings.map((row, index) => ({ row, index }));
  const own = rows.filter(({ row }) => !row.of_the_profiler),
    others = rows.filter(({ row }) => row.of_the_profiler);
  if (!rows.length) return null;
  const drawn = (some: typeof rows): Child => some.map(({ row, index }) => finding(app, row, index));
  const [head] = app.sentences.blocks.findings!;
  return h(
    "section",
    { id: "findings" },
    h("header", h("h2", "Findings"), h("p", head?.type === "Heading" ? head.basis : "")),
    app.sentences.together && para("lead", app.sentences.together),
    drawn(own),
    others.length > 0 &&
      h("details", { open: !own.length }, h("summary", `${NOTES}: ${others.length}`), drawn(others)),
  );
}

/** What it saves, how sure that is, and the way to the finding above that saves most of it already. */
function saves(app: App, row: FindingRow, index: number): Child {
  const parts = app.sentences.savings[index]!;
  if (!parts.length) return null;
  // An upper end that is the whole step says only that the step cannot get shorter than nothing.
  const open = row.saving_high_us >= (app.report.replay?.savings_of_us ?? Infinity);
  const likely = open
    ? `likely ${numbers.time(row.saving_low_us)} or more`
    : `likely ${numbers.range(row.saving_low_us, row.saving_high_us)}`;
  const about = { title: "by what such advice was measured to save elsewhere" };
  const range = !row.saving_condition && row.saving_high_us > row.saving_low_us && h("span", about, likely);
  return h(parts.length > 1 ? "div.saves.owned" : "div.saves", inline(app, parts), h("small", range));
}

function finding(app: App, row: FindingRow, index: number): HTMLElement {
  const measured = app.sentences.measured[index];
  const kernels = app.report.kernels
    .filter((one) => row.kernels.includes(one.name))
    .slice(0, 4)
    .map((one) => [monoLink(app.kernelHref(one.name), shorten(one.short_name, 60)), " "]);
  const evidence = row.evidence.slice(0, 6).map((item, at): Child => {
    const isThere = item.end_us > item.start_us || item.events.length > 0;
    const href = isThere && app.traceTimeHref(item.start_us, item.end_us, { f: `${index}.${at}` }, 0.6);
    return href ? link(href, item.text, "show it in the timeline") : item.text;
  });
  return h(
    "article",
    { class: `finding ${row.severity}`, data: { rule: row.rule, index: String(index) } },
    h("div.finding-head", h("h3", row.title), saves(app, row, index)),
    h("p", row.advice, " ", row.source && sourceDoor(app, row.source)),
    (row.saving_us > 0 || row.saving_condition) && soft(`Estimate: ${row.saving_basis}.`),
    measured
      ? para(
          `measured ${row.measured_verdict ?? ""}`,
          `${measured[0]!.toUpperCase()}${measured.slice(1)}.`,
          row.measured_basis && h("small", ` By ${row.measured_basis}.`),
        )
      : row.proof &&
          soft(
            "To measure it: ",
            h("code", row.proof),
            " ",
            copyButton(row.proof, "the command"),
            row.proof_lacks && ` It needs ${row.proof_lacks}, which is not where the report was made.`,
          ),
    row.snippet && h("pre", row.snippet),
    evidence.length > 0 && list(null, evidence),
    kernels.length > 0 && soft("Kernels: ", kernels),
  );
}
