// Where torch.compile gave up or began again: failures, graph breaks, recompilations.
import type { App } from "../app.ts";
import type { Compilation, GraphBreak } from "../document.ts";
import { type Child, h, list, soft, titled } from "../dom.ts";
import { lineDoor } from "../links.ts";
import { shorten } from "../names.ts";
import * as numbers from "../numbers.ts";

export function failures(app: App, facts: Compilation): Child {
  return (
    facts.failures.length > 0 &&
    titled(
      "Failures",
      "",
      facts.failures.map((row) =>
        h(
          "article",
          { class: "finding high" },
          h("h3", {}, `${row.compile_id} ${row.type}`),
          h("p", {}, lineDoor(app, row.file, row.line), " ", shorten(row.reason, 600)),
          row.code && h("pre", {}, row.code),
          soft(
            row.effect,
            row.hints.map((hint) => h("span", {}, ` → ${hint}`)),
          ),
        ),
      ),
    )
  );
}

export function breaks(app: App, facts: Compilation): Child {
  const extra = (launches: number, row: GraphBreak) =>
    numbers.count(launches) +
    (row.extra_launches_per_step === null ? "" : `, ${+row.extra_launches_per_step.toPrecision(3)} per step`);
  return (
    facts.graph_breaks.length > 0 &&
    titled(
      "Graph breaks",
      "where Python took over, and what it cost",
      facts.graph_breaks.map((row) =>
        h(
          "article",
          { class: "finding medium" },
          h(
            "div",
            { class: "finding-head" },
            h("h3", {}, lineDoor(app, row.file, row.line), " ", shorten(row.reason, 200)),
            h("div", { class: "saves" }, row.idle_us ? `${numbers.time(row.idle_us)} idle` : ""),
          ),
          row.code && h("pre", {}, row.code),
          h("p", {}, shorten(row.explanation, 600)),
          row.hints.length > 0 &&
            list(
              null,
              row.hints.slice(0, 4).map((hint) => shorten(hint, 400)),
            ),
          soft(
            [
              `${numbers.count(row.count)} ×`,
              `retraced ${numbers.seconds(row.cost_s)}`,
              row.crossings !== null && `crossed ${numbers.count(row.crossings)}`,
              row.extra_launches !== null && `extra launches ${extra(row.extra_launches, row)}`,
            ]
              .filter(Boolean)
              .join(" · "),
          ),
        ),
      ),
    )
  );
}

export function recompilations(app: App, facts: Compilation): Child {
  return (
    facts.recompilations.length > 0 &&
    titled(
      "Recompilations",
      "which guard failed, and what it cost",
      facts.recompilations.map((row) =>
        h(
          "article",
          { class: "finding medium" },
          h(
            "div",
            { class: "finding-head" },
            h("h3", {}, `${row.compile_id} ${row.function ?? ""} `, lineDoor(app, row.file, row.line)),
            h("div", { class: "saves" }, numbers.seconds(row.cost_s)),
          ),
          h(
            "ul",
            {},
            row.reasons
              .slice(0, 4)
              .map((reason) =>
                h(
                  "li",
                  {},
                  h("code", {}, shorten(reason.guard, 300)),
                  h("small", {}, ` guard of ${reason.of} `),
                  lineDoor(app, reason.file, reason.line),
                  reason.code && h("code", {}, ` ${shorten(reason.code, 120)}`),
                ),
              ),
          ),
          h(
            "p",
            {},
            shorten(row.advice, 500),
            row.limit_hit && " The limit is reached: it runs eagerly from here on.",
          ),
        ),
      ),
    )
  );
}
