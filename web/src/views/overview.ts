// The first screen: what is slow, whether to believe it, and what to change.
import type { App } from "../app.ts";
import { sections, verdict } from "../blocks.ts";
import { type Child, h, list, soft } from "../dom.ts";
import { compileParts } from "./compile.ts";
import { critical, findings } from "./findings.ts";
import { idle, stepBars } from "./steps.ts";

export function overview(app: App): Child {
  const { report, sentences } = app;
  return [
    list(
      "crumbs",
      sentences.title.map((part) => part),
    ),
    verdict(sentences.verdict, report.health.verdict === "good"),
    sentences.notes.length > 0 &&
      list(
        "notes",
        sentences.notes.map((note) => note),
      ),
    h("h1", {}, sentences.headline),
    sentences.timing && h("p", { class: "lead" }, sentences.timing),
    sentences.compilation && h("p", { class: "lead" }, h("a", { href: "#compile" }, sentences.compilation)),
    h(
      "div",
      { class: "cards" },
      sentences.cards.map(([value, label, place]) =>
        h("a", { class: "card", href: `#${place}` }, h("b", {}, value), h("span", {}, label)),
      ),
    ),
    stepBars(app),
    findings(app),
    critical(app),
    idle(app),
    report.compilation && !report.devices.length && compileParts(app, report.compilation),
    sections(app, sentences.blocks.overview!),
    report.unread.map((problem) => soft(problem)),
  ];
}
