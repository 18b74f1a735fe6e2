// Two recordings compared: what differs, and one step of each on one timeline.
import type { App } from "../app.ts";
import { sections } from "../blocks.ts";
import { chip, chips, h, titled, type Child } from "../dom.ts";
import { format } from "../links.ts";
import type { TimelineView } from "../timeline/view.ts";

export function comparison(app: App, timeline: TimelineView | null, canAlign: boolean): Child {
  const isAligned = timeline !== null && timeline.store.start !== timeline.store.began;
  const byStep = chip(format([app.timeline]), "step", !isAligned);
  const byGraph = chip(format([app.timeline], { by: "graph" }), "compiled graph", isAligned);
  const { above = [], legend = [], below = [] } = app.sentences.blocks;
  return [
    sections(app, above),
    timeline &&
      titled(
        "One step of each",
        isAligned
          ? "each call of a compiled graph that both make begins at one place, and its end too"
          : "from the step's begin, on one scale",
        canAlign && chips("aligned by", "aligned by", byStep, byGraph),
        h("div.embedded", timeline.element),
        sections(app, legend),
      ),
    sections(app, below),
  ];
}
