// What torch.compile did: when, of what, where it gave up, and what became of the graphs.
import type { App } from "../app.ts";
import { sections } from "../blocks.ts";
import type { Compilation, Frame } from "../document.ts";
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

const spent = (frame: Frame, phase: string): number => frame[`${phase}_s` as keyof Frame] as number;
/** `0/1`; once torch began to count again, `0/1·2`. */
const idOf = (frame: Frame): string =>
  frame.generation ? `${frame.compile_id}·${frame.generation + 1}` : frame.compile_id;
const frameHref = (frame: number): string => format(["compile", frame]);

/** Of the phases that took any time. */
const phasesOf = (app: App, frames: readonly Frame[]): Child =>
  legend(
    Object.entries(app.sentences.phases)
      .filter(([phase]) => frames.some((frame) => spent(frame, phase) > 0))
      .map(([, [label, colour]]) => [colour, label]),
  );

/** What was compiled when: a lane a compilation, the longest ones where there are many. */
function timeline(app: App, facts: Compilation): Child {
  const { stretches: intervals } = facts;
  if (!intervals.length) return phasesOf(app, facts.frames);
  const { phases } = app.sentences;
  const from = Math.min(...intervals.map((row) => row.start_s)),
    to = Math.max(...intervals.map((row) => row.start_s + row.duration_s));
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
        label: `${facts.frames.some((one) => one.rank !== frame.rank) ? `rank ${frame.rank} ` : ""}${idOf(frame)} ${shorten(frame.function ?? "?", 40)}`,
        href: frameHref(frame.index),
        intervals: intervals
          .filter((row) => row.frame === frame.index)
          .map((row) => ({
            label: `${phases[row.phase]![0]}: ${numbers.seconds(row.duration_s)}, from ${numbers.seconds(row.start_s - from)} on`,
            start: row.start_s - from,
            length: row.duration_s,
            colour: phases[row.phase]![1],
          })),
      })),
      to - from,
      numbers.seconds,
    ),
    phasesOf(app, drawn),
    hidden > 0 && soft(`${numbers.count(hidden)} that took less are not drawn.`),
  );
}
