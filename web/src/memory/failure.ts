// Who asked for what could not be had, and what would free memory.
import type { App } from "../app.ts";
import { inline } from "../blocks.ts";
import { h, titled, type Child } from "../dom.ts";
import * as numbers from "../numbers.ts";
import { format } from "../route.ts";
import type { MemoryPeak } from "../document.ts";
import { stackOf } from "./owner.ts";

/** Findings are of the moment that failed, where one did. */
export function failure(app: App, peak: MemoryPeak): Child {
  const failed = app.report.memory_peaks.some((one) => one.failed_bytes !== null);
  return [
    peak.failed_stack.length > 0 &&
      h(
        "details",
        { class: "failed" },
        h("summary", {}, `Who asked for the ${numbers.size(peak.failed_bytes!)} that could not be had`),
        stackOf(app, peak.failed_stack),
      ),
    (peak.failed_bytes !== null || !failed) && frees(app),
  ];
}

/** The findings on memory, as doors. */
function frees(app: App): Child {
  const rows = app.report.findings.flatMap((row, index) => (row.saving_bytes ? [{ row, index }] : []));
  return (
    rows.length > 0 &&
    titled(
      "What would free it",
      "each by itself; they do not add up",
      h(
        "ul",
        { id: "memory-frees" },
        rows.map(({ row, index }) =>
          h(
            "li",
            {},
            h("a", { class: "door", href: format(["overview"], { finding: index }) }, row.title),
            " ",
            h("small", {}, inline(app, app.sentences.savings[index]!)),
          ),
        ),
      ),
    )
  );
}
