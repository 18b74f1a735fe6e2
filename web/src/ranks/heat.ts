// Ranks by steps as a heat map: a rank's time of a step against the other ranks' time of it.
import type { App } from "../app.ts";
import { at, hovered, inks, painted } from "../canvas.ts";
import type { PaceRow, Paces, Ranks } from "../document.ts";
import { choice, type Child, fill, h, link, swatch } from "../dom.ts";
import { shorten } from "../names.ts";
import * as numbers from "../numbers.ts";

const MEASURES = ["own", "took", "late"] as const;
type Measure = (typeof MEASURES)[number];

const ABOUT: Record<Measure, [label: string, about: string]> = {
  own: ["own time", "a step's time without exposed waiting for other ranks, against the median over ranks"],
  took: ["whole step", "a step's time with all waiting, against the median over ranks"],
  late: ["lateness", "how long all other ranks waited for this one"],
};

/** A row's figure in a column, in microseconds; of several ranks their median, or the slowest one's. */
function value(row: PaceRow, measure: Measure, column: number, slowest = false): number | null {
  if (measure === "late") return row.blamed_us[column] ?? null;
  if (measure === "own" && slowest) return row.slowest_us[column] ?? null;
  return (measure === "own" ? row.own_us : row.took_us)[column] ?? null;
}

/** Above the median of its step, as a share of that; of lateness, as a share of the step. */
export function excess(
  paces: Paces,
  row: PaceRow,
  measure: Measure,
  column: number,
  slowest = false,
): number | null {
  const usual = (measure === "own" ? paces.own_us : paces.took_us)[column] ?? null;
  const found = value(row, measure, column, slowest);
  if (usual === null || found === null) return null;
  return measure === "late" ? found / (row.count * usual || 1) : (found - usual) / (usual || 1);
}

const LEAST = 0.05; // a difference that has the full colour at least: noise is not to look like a finding

/** The excess that has the full colour. */
export function fullest(paces: Paces, measure: Measure): number {
  let most = LEAST;
  for (const row of paces.rows)
    paces.steps.forEach((_, column) => {
      for (const slowest of [false, true])
        most = Math.max(most, Math.abs(excess(paces, row, measure, column, slowest) ?? 0));
    });
  return most;
}

const HIGHEST = 24,
  MOST = 640, // pixels of all rows
  FOOT = 20,
  SIDE = 72, // of the labels
  LETTERS = 12; // pixels that a label needs

/** The heat map, with a choice of what its rows are where hosts or process groups are known. */
export function heat(app: App, { paces }: Ranks): HTMLElement {
  const sorts = Object.entries(paces.places);
  if (!sorts.length) return drawn(app, paces);
  const choices: [string, PaceRow[]][] = [["ranks", paces.rows], ...sorts];
  const room = h("div");
  const show = (wanted: number): void => fill(room, drawn(app, { ...paces, rows: choices[wanted]![1] }));
  const names = choices.map(([name]) => `by ${shorten(name, 26)}`);
  show(0);
  return h("div", h("div.tools.bare", choice(names, show)), room);
}

function drawn(app: App, paces: Paces): HTMLElement {
  const { rows, steps } = paces;
  const tall = Math.min(HIGHEST, MOST / rows.length);
  let measure: Measure = "own",
    chosen: [number, number] | null = null,
    full = fullest(paces, measure);

  const x = (column: number, width: number): number => SIDE + ((width - SIDE) * column) / steps.length;
  const cell = (left: number, top: number): [number, number] | null => {
    const width = view.width(),
      column = Math.floor(((left - SIDE) / (width - SIDE)) * steps.length),
      row = Math.floor(top / tall);
    return rows[row] && column >= 0 && column < steps.length ? [row, column] : null;
  };

  const paint = (context: CanvasRenderingContext2D, width: number): void => {
    const ink = inks();
    const shade = (share: number | null, ...box: [number, number, number, number]): void => {
      context.fillStyle = share === null ? ink.card : ink.track;
      context.fillRect(...box);
      if (share === null) return;
      context.globalAlpha = Math.min(Math.abs(share) / full, 1);
      context.fillStyle = share > 0 ? ink.bad : ink.accent;
      context.fillRect(...box);
      context.globalAlpha = 1;
    };
    const room = tall > 6 ? 1 : 0;
    rows.forEach((row, place) => {
      const top = place * tall;
      for (let column = 0; column < steps.length; column++) {
        const left = x(column, width),
          wide = x(column + 1, width) - left - (steps.length < 60 ? 1 : 0);
        shade(excess(paces, row, measure, column), left, top, wide, tall - room);
        if (row.count > 1 && measure === "own" && tall > 6)
          shade(excess(paces, row, measure, column, true), left, top + tall * 0.65, wide, tall * 0.35 - room);
      }
      const every = Math.ceil(LETTERS / tall);
      if (place % every === 0) {
        context.fillStyle = ink.ink;
        context.textAlign = "right";
        context.fillText(label(row), SIDE - 6, top + Math.max(tall, LETTERS) / 2 + 4);
      }
    });
    context.fillStyle = ink.soft;
    context.textAlign = "left";
    const foot = rows.length * tall + 14;
    context.fillText(shorten(steps[0]!, 22), SIDE, foot);
    context.textAlign = "right";
    if (steps.length > 1) context.fillText(shorten(steps.at(-1)!, 22), width, foot);
    if (chosen) {
      const left = x(chosen[1], width);
      context.strokeStyle = ink.ink;
      context.lineWidth = 2;
      context.strokeRect(left, chosen[0] * tall, x(chosen[1] + 1, width) - left, tall);
    }
  };

  const view = painted(
    "ranks by steps; arrow keys go from one to the next",
    rows.length * tall + FOOT,
    paint,
  );
  const panel = h("p", { class: "owner", "aria-live": "polite" });
  const choose = (found: [number, number] | null): void => {
    chosen = found;
    fill(panel, found && [sentence(...found), door(app, rows[found[0]]!, steps[found[1]]!)]);
    view.draw();
  };
  const sentence = (row: number, column: number): string => {
    const one = rows[row]!,
      several = one.place || (one.count > 1 && `${one.count} ranks`);
    const who = several ? `${several} (${shorten(one.ranks, 60)})` : `rank ${one.ranks}`;
    const found = value(one, measure, column);
    if (found === null) return `${who} did not record ${steps[column]}`;
    if (measure === "late") return `${who}, ${steps[column]}: others waited ${numbers.time(found)}`;
    const usual = (measure === "own" ? paces.own_us : paces.took_us)[column] ?? 0;
    const slowest = one.count > 1 && measure === "own" ? value(one, measure, column, true) : null;
    const more = slowest === null ? "" : `; slowest rank ${one.slowest[column]}, ${numbers.time(slowest)}`;
    const middle = one.count > 1 ? " at the median" : "";
    return `${who}, ${steps[column]}: ${numbers.time(found)}${middle}, of all ranks ${numbers.time(usual)} (${signed(excess(paces, one, measure, column)!)})${more}`;
  };
  hovered(view, (x, y) => {
    const found = cell(x, y);
    return found && sentence(...found);
  });
  view.canvas.addEventListener("click", (event) => choose(cell(...at(event))));
  const ways: Record<string, [number, number]> = {
    ArrowUp: [-1, 0],
    ArrowDown: [1, 0],
    ArrowLeft: [0, -1],
    ArrowRight: [0, 1],
  };
  view.canvas.addEventListener("keydown", (event) => {
    const way = ways[event.key];
    if (!way) return;
    const [row, column] = chosen ?? [-way[0], -way[1]];
    choose([clamp(row + way[0], rows.length), clamp(column + way[1], steps.length)]);
    event.preventDefault();
  });
  const about = h("p.soft");
  const scale = h("span");
  const quicker = h("li", swatch("var(--accent)"), "quicker");
  const show = (next: Measure): void => {
    measure = next;
    full = fullest(paces, measure);
    const isOfGroups = measure === "own" && rows.some((row) => row.count > 1);
    const more = isOfGroups ? "; of a group of ranks its median, below it its slowest rank" : "";
    about.textContent = ABOUT[measure][1] + more;
    const latest = Math.max(...rows.flatMap((row) => row.blamed_us));
    scale.textContent = measure === "late" ? numbers.time(latest) : signed(full);
    quicker.hidden = measure === "late";
    choose(chosen);
  };
  const labels = MEASURES.map((one) => ABOUT[one][0]);
  const buttons = choice(labels, (at) => show(MEASURES[at]!));
  show("own");
  return h(
    "div",
    h("div.tools.bare", buttons),
    about,
    view.element,
    h(
      "ul.legend",
      quicker,
      h("li", swatch("var(--track)"), "as the others"),
      h("li", swatch("var(--bad)"), "slower, later; full at ", scale),
    ),
    panel,
  );
}

const clamp = (place: number, count: number): number => Math.min(Math.max(place, 0), count - 1);

const signed = (share: number): string => `${share < 0 ? "−" : "+"}${numbers.percent(Math.abs(share))}`;

const label = ({ place, count, ranks }: PaceRow): string =>
  place ? shorten(place, 11) : count === 1 ? `rank ${ranks}` : numbers.count(count, "rank");

/** To the step in the timeline, where this page has the rank's. */
function door(app: App, row: PaceRow, name: string): Child {
  const step = app.report.steps.find((one) => one.name === name && String(one.rank) === row.ranks);
  const href = step && app.traceTimeHref(step.start_us, step.start_us + step.duration_us);
  return href ? [" · ", link(href, "in the timeline")] : null;
}
