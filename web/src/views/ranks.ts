// Ranks compared: who is waited for and why, step by step, collective by collective.
import type { App } from "../app.ts";
import { sections } from "../blocks.ts";
import type { Ranks } from "../document.ts";
import { chip, chips, type Child, h, list, soft, titled } from "../dom.ts";
import { shorten } from "../names.ts";
import * as numbers from "../numbers.ts";
import { collective } from "../ranks/collective.ts";
import { heat } from "../ranks/heat.ts";
import { format, type Route } from "../links.ts";

export function ranks(app: App, { parameters }: Route): Child {
  const found = app.report.ranks;
  if (!found) return h("p", "One rank was recorded.");
  const blocks = app.sentences.blocks.ranks!,
    tables = blocks.findIndex((block) => block.type === "Heading" && block.level > 1);
  const lead = tables < 0 ? blocks.length : tables;
  return [
    !app.report.sources.length && list("crumbs", app.sentences.title),
    sections(app, blocks.slice(0, lead)),
    found.paces.rows.length > 0 &&
      found.paces.steps.length > 0 &&
      titled("Steps over ranks", "", heat(app, found)),
    collectives(app, found, Number(parameters.get("collective") ?? 0) || 0),
    sections(app, blocks.slice(lead)),
    app.report.unread.map((problem) => soft(problem)),
  ];
}

/** One collective, of those that were waited in most. */
function collectives(app: App, { meetings }: Ranks, wanted: number): Child {
  const at = Math.min(wanted, meetings.length - 1);
  const one = meetings[at];
  return (
    one &&
    titled(
      "A collective over its ranks",
      [one.kind, one.bytes === null ? "" : numbers.size(one.bytes), one.step].filter(Boolean).join(" · "),
      meetings.length > 1 &&
        chips(
          "of each kind the one that was waited in most",
          "the longest waits of each kind:",
          meetings.map(({ kind, bytes, group }, place) => {
            const size = bytes === null ? "" : ` ${numbers.size(bytes)}`;
            const name = `${kind}${size}, ${shorten(group, 26)}`;
            return chip(format(["ranks"], { collective: place }), name, place === at);
          }),
        ),
      collective(app, one),
    )
  );
}
