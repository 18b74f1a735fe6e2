// The first screen: what to change and what that buys, whether to believe it, where one step goes.
import type { App } from "../app.ts";
import { sections, verdict } from "../blocks.ts";
import { inks, painted } from "../canvas.ts";
import { type Child, h, list, para, soft, titled } from "../dom.ts";
import * as numbers from "../numbers.ts";
import { draw, RULER, unmarked } from "../timeline/draw.ts";
import { groupsOf, layout, unarranged } from "../timeline/layout.ts";
import { compileParts } from "./compile.ts";
import { findings } from "./findings.ts";
import { stepBars } from "./steps.ts";

export function overview(app: App): Child {
  const { report, sentences } = app;
  const { first, unrecorded, kernels, waits, overview } = sentences.blocks;
  return [
    list("crumbs", sentences.title),
    sentences.program && soft(h("code", sentences.program)),
    verdict(sentences.verdict, report.health.verdict === "good"),
    sentences.notes.length > 0 && list("notes", sentences.notes),
    h("div.first", sections(app, first!)),
    sentences.timing && para("lead", sentences.timing),
    sentences.compilation && para("lead", h("a", { href: "#compile" }, sentences.compilation)),
    h("div.cards", sentences.cards.map(card)),
    strip(app),
    sections(app, kernels!),
    h("div.soft", sections(app, unrecorded!)),
    findings(app),
    stepBars(app),
    sections(app, waits!),
    report.compilation && !report.devices.length && compileParts(app, report.compilation),
    sections(app, overview!),
    report.unread.map((problem) => soft(problem)),
  ];
}

const card = ([value, label, place]: [string, string, string]): HTMLElement =>
  h("a", { class: "card", href: `#${place}` }, h("b", value), h("span", label));

/** The step whose length is the median one, as the timeline draws it: a door to it. */
function strip(app: App): Child {
  const { store, report } = app;
  const [rank] = report.devices.map((device) => device.rank);
  const sorted = report.steps
    .filter((step) => step.rank === rank)
    .sort((a, b) => a.duration_us - b.duration_us);
  const step = sorted[sorted.length >> 1];
  if (!store || !step) return null;
  const groups = groupsOf(app, store);
  const device = groups.find(({ key }) => key.startsWith(`device${rank}/`))?.key;
  const drawn = groups
    .filter(({ key, under, label }) => [key, under].includes(device!) && !label.endsWith("annotations"))
    .map((group) => ({ ...group, label: "", tracks: group.tracks.slice(0, 1) }));
  const { tracks, height } = layout(drawn, unarranged());
  const from = (step.start_us - store.timeline.origin_ns / 1000) * 1000,
    to = from + step.duration_us * 1000;
  const view = { from, to, scroll: 0, fixed: 0, height: RULER + height };
  const { element } = painted(`the GPU's work in ${step.name}`, RULER + height, (context, width) =>
    draw(context, store, app, tracks, { ...view, width }, unmarked(), inks()),
  );
  const door = {
    class: "strip",
    href: app.timeHref(from, to, {}, 0.02),
    "aria-label": "the step in the timeline",
  };
  return titled(
    "One step on the GPU",
    `${[app.rankName(step.rank), step.name].filter(Boolean).join(" ")}, ${numbers.time(step.duration_us)} as recorded: idle time by its cause, then each stream by category`,
    h("a", door, element),
  );
}
