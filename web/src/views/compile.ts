// What torch.compile did: when, of what, where it gave up, and what became of the graphs.
import type { App } from "../app.ts";
import { sections } from "../blocks.ts";
import type { Compilation, Frame, PhaseSpan } from "../document.ts";
import { type Child, h, legend, para, soft, titled } from "../dom.ts";
import { type Route, format, lineDoor } from "../links.ts";
import { shorten } from "../names.ts";
import * as numbers from "../numbers.ts";
import { lanes } from "../plot.ts";
import { frameTexts } from "./code.ts";

const LANES = 40;

export function compile(app: App, { path }: Route): Child {
  const { compilation } = app.report,
    frame = compilation?.frames[Number(path[1] ?? NaN)];
  if (compilation && frame) return framePage(app, compilation, frame);
  return [
    h("h1", "What torch.compile did"),
    compilation && [para("lead", app.sentences.compilation), compileParts(app, compilation)],
    sections(app, app.sentences.blocks.graphs!),
  ];
}

export function compileParts(app: App, facts: Compilation, own = ""): Child {
  return [
    facts.notes.map((note) => para("note", note)),
    timeline(app, facts),
    sections(app, app.sentences.blocks[`troubles${own}`]!),
    sections(app, app.sentences.blocks[`compiled${own}`]!),
  ];
}

/** All that is known of one compilation: the same parts, of it alone. */
function framePage(app: App, facts: Compilation, frame: Frame): Child {
  const stretches = facts.stretches.filter((row) => row.frame === frame.index);
  return [
    soft(h("a", { href: "#compile" }, "torch.compile"), " / ", idOf(frame)),
    h("h1", `What was compiled of ${shorten(frame.function ?? "a function without a name", 80)}`),
    para("lead", lineDoor(app, frame.file, frame.line)),
    compileParts(app, { ...facts, notes: [], frames: [frame], stretches }, ` ${frame.index}`),
    frameTexts(app, frame.index),
  ];
}

/** `0/1`; once torch began to count again, `0/1·2`. */
const idOf = (frame: Frame): string =>
  frame.generation ? `${frame.compile_id}·${frame.generation + 1}` : frame.compile_id;

/** Of the phases that took any time. */
function phasesOf(app: App, frames: readonly Frame[]): Child {
  const all = Object.entries(app.sentences.phases);
  const spent = all.filter(([phase]) =>
    frames.some((frame) => (frame[`${phase}_s` as keyof Frame] as number) > 0),
  );
  return legend(spent.map(([, [label, colour]]) => [colour, label]));
}

/** What was compiled when: a lane a compilation, the longest ones where there are many. */
function timeline(app: App, facts: Compilation): Child {
  const { stretches: intervals } = facts;
  if (!intervals.length) return phasesOf(app, facts.frames);
  const { phases } = app.sentences;
  const from = Math.min(...intervals.map((row) => row.start_s)),
    to = Math.max(...intervals.map((row) => row.start_s + row.duration_s));
  const isOfSeveral = new Set(facts.frames.map((one) => one.rank)).size > 1;
  const rankOf = (frame: Frame): string => (isOfSeveral ? `rank ${frame.rank} ` : "");
  const interval = ({ phase, start_s, duration_s: length }: PhaseSpan) => {
    const [name, colour] = phases[phase]!;
    const label = `${name}: ${numbers.seconds(length)}, from ${numbers.seconds(start_s - from)} on`;
    return { label, start: start_s - from, length, colour };
  };
  const drawn = facts.frames
    .filter((frame) => intervals.some((row) => row.frame === frame.index))
    .toSorted((a, b) => b.compile_s - a.compile_s)
    .slice(0, LANES)
    .sort((a, b) => a.index - b.index);
  const hidden = facts.frames.length - drawn.length;
  return titled(
    "When",
    `on the wall clock, from the first to the last of it: ${numbers.seconds(to - from)}`,
    lanes(
      drawn.map((frame) => ({
        label: `${rankOf(frame)}${idOf(frame)} ${shorten(frame.function ?? "?", 40)}`,
        href: format(["compile", frame.index]),
        intervals: intervals.filter((row) => row.frame === frame.index).map(interval),
      })),
      to - from,
      numbers.seconds,
    ),
    phasesOf(app, drawn),
    hidden > 0 && soft(`${numbers.count(hidden)} that took less are not drawn.`),
  );
}
