// `?`: every key of the page, and what it does.
import { button, dialog, facts, h } from "./dom.ts";

const KEYS: [keys: string, does: string][] = [
  ["/", "search everything: kernels, ops, lines, findings, steps"],
  ["?", "these keys"],
  ["W S", "timeline: zoom in and out; Ctrl + wheel does too, at the pointer"],
  ["Shift + W S", "timeline: taller and smaller tracks"],
  ["A D", "timeline: to the left and right; with Shift further; a drag too"],
  ["← →", "timeline: the event before or after the selected one on its line"],
  ["↑ ↓", "timeline: scroll the tracks"],
  ["N P", "timeline: the next or previous event of the selected name"],
  ["F Enter", "timeline: fit what is selected"],
  ["Shift + drag", "timeline: select a range, and sum what happened in it"],
  ["click on idle", "timeline: why the GPU idled there; a track's head collapses it"],
  ["Esc", "let go of what is selected; in the flame graph, all of it again"],
  ["Ctrl + wheel", "memory: allocations zoom at the pointer; Shift + wheel goes along"],
  ["click", "flame graph: zoom; with Shift, show the longest call in the timeline"],
];

export function keyHelp(): { element: HTMLElement; open: () => void } {
  const close = button("×", () => element.close(), { class: "close", "aria-label": "close" });
  const keys = facts(KEYS.map(([keys, does]) => [h("kbd", keys), does]));
  const element: HTMLDialogElement = dialog("keys", "help", close, h("h2", "Keys"), keys);
  return { element, open: () => element.showModal() };
}
