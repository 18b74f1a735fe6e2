// Small plots as SVG: histograms, bars, curves, the roofline.
import { h, svg, type Child } from "./dom.ts";
import * as numbers from "./numbers.ts";

export interface Part {
  label: string;
  share: number;
  colour: string;
  /** Nothing ran: hatched, whatever its colour. */
  idle?: boolean;
  href?: string | null;
}

/** One line of bar; parts are doors where they lead somewhere. */
export function bar(label: string, parts: Part[], thin = false): HTMLElement {
  return h(
    "div",
    { class: thin ? "bar thin" : "bar", role: "group", "aria-label": label },
    parts
      .filter((part) => part.share > 0)
      .map((part) =>
        h(part.href ? "a" : "span", {
          ...(part.href ? { href: part.href, "aria-label": part.label } : {}),
          title: part.label,
          class: part.idle && "idle",
          style: { width: `${100 * part.share}%`, background: part.colour },
        }),
      ),
  );
}

export interface Lane {
  label: string;
  href: string;
  intervals: { label: string; start: number; length: number; colour: string }[];
}

/** What happened when: a lane a row, with marks of time below; each lane is a door. */
export function lanes(rows: Lane[], whole: number, write: (value: number) => string): HTMLElement {
  const share = (value: number) => `${((100 * value) / (whole || 1)).toFixed(3)}%`;
  return h(
    "div.bars.lanes",
    rows.map(({ label, href, intervals }) => [
      h("a", { class: "label mono", href, title: label }, label),
      h(
        "a",
        { class: "lane", href, "aria-label": `${label}: ${intervals.map((one) => one.label).join("; ")}` },
        intervals.map(({ label, start, length, colour }) =>
          h("i", { title: label, style: { left: share(start), width: share(length), background: colour } }),
        ),
      ),
    ]),
    h("span"),
    ticks(whole, write),
  );
}

export const ticks = (whole: number, write: (value: number) => string): HTMLElement =>
  h(
    "div",
    { class: "ticks", "aria-hidden": "true" },
    [0, 0.25, 0.5, 0.75, 1].map((at) => h("span", at ? write(at * whole) : "0")),
  );

/** Below a drawing: its left end, what it is of, its right end. */
export const caption = (...parts: Child[]): HTMLElement =>
  h(
    "figcaption",
    parts.map((part) => h("span", part)),
  );

/** Counts in bins of the logarithm, between the least and the most. */
export function histogram(
  values: ArrayLike<number>,
  bins: number,
): { counts: number[]; low: number; high: number } {
  let low = Infinity,
    high = 0;
  for (let at = 0; at < values.length; at++) {
    low = Math.min(low, values[at]!);
    high = Math.max(high, values[at]!);
  }
  low = Math.max(low, 1e-3);
  const counts = new Array<number>(bins).fill(0);
  const width = Math.log(Math.max(high / low, 1.0001)) / bins;
  for (let at = 0; at < values.length; at++)
    counts[Math.min(bins - 1, Math.max(0, Math.floor(Math.log(values[at]! / low) / width)))]!++;
  return { counts, low, high };
}

export function sparkline(
  counts: number[],
  colour: string,
  label: string,
  width = 72,
  height = 18,
): SVGElement {
  const most = Math.max(...counts, 1),
    step = width / counts.length;
  return svg(
    "svg",
    {
      viewBox: `0 0 ${width} ${height}`,
      width,
      height,
      role: "img",
      "aria-label": label,
      class: "spark",
      preserveAspectRatio: "none",
    },
    counts.map((count, at) => {
      const tall = count ? Math.max(1.5, (count / most) * height) : 0;
      return svg("rect", {
        x: at * step,
        y: height - tall,
        width: Math.max(step - 0.6, 0.6),
        height: tall,
        fill: colour,
      });
    }),
  );
}

/** A curve over time in microseconds; the y axis begins at 0. */
export function curve(label: string, starts: number[], values: number[], about: Child): HTMLElement {
  const most = Math.max(...values, 1e-9),
    from = starts[0]!,
    width = starts.at(-1)! - from || 1;
  const points = starts.flatMap((start, at) => {
    const y = (98 - (96 * values[at]!) / most).toFixed(1); // it holds until the next one
    return [start, starts[at + 1] ?? start].map((x) => `${((1000 * (x - from)) / width).toFixed(1)},${y}`);
  });
  return h(
    "figure.curve",
    svg(
      "svg",
      { viewBox: "0 0 1000 100", preserveAspectRatio: "none", role: "img", "aria-label": label },
      svg("polygon", { points: `0,98 ${points.join(" ")} 1000,98` }),
      svg("polyline", { points: points.join(" "), fill: "none", "vector-effect": "non-scaling-stroke" }),
    ),
    caption(numbers.time(0), about, numbers.time(width)),
  );
}

export interface Dot {
  x: number;
  y: number;
  size: number;
  colour: string;
  label: string;
  href: string;
}
export interface RoofLine {
  label: string;
  peak: number;
  bandwidth: number;
}

const SCALES: [number, string][] = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]; // prettier-ignore
const WIDE = 720,
  TALL = 360,
  LEFT = 58,
  BOTTOM = 34;

/** FLOP/s over FLOP a byte, both logarithmic, under the device's roofs. */
export function roofline(dots: Dot[], roofs: RoofLine[]): SVGElement {
  const xs = dots.map((dot) => dot.x),
    ys = dots.map((dot) => dot.y);
  const xLow = Math.floor(Math.log10(Math.min(...xs, 0.1))),
    xHigh = Math.ceil(Math.log10(Math.max(...xs, 1000)));
  const yLow = Math.floor(Math.log10(Math.min(...ys, ...roofs.map((roof) => roof.peak / 1e4)))),
    yHigh = Math.ceil(Math.log10(Math.max(...ys, ...roofs.map((roof) => roof.peak))));
  const x = (value: number) => LEFT + ((Math.log10(value) - xLow) / (xHigh - xLow)) * (WIDE - LEFT - 8);
  const y = (value: number) =>
    TALL - BOTTOM - ((Math.log10(value) - yLow) / (yHigh - yLow)) * (TALL - BOTTOM - 8);
  const grid: SVGElement[] = [];
  for (let power = xLow; power <= xHigh; power++)
    grid.push(
      svg("line", { class: "grid", x1: x(10 ** power), x2: x(10 ** power), y1: 8, y2: TALL - BOTTOM }),
      svg("text", { x: x(10 ** power), y: TALL - BOTTOM + 14, "text-anchor": "middle" }, short(10 ** power)),
    );
  for (let power = yLow; power <= yHigh; power++)
    grid.push(
      svg("line", { class: "grid", x1: LEFT, x2: WIDE - 8, y1: y(10 ** power), y2: y(10 ** power) }),
      svg("text", { x: LEFT - 5, y: y(10 ** power) + 4, "text-anchor": "end" }, short(10 ** power)),
    );
  const lines = roofs.map((roof) => {
    const ridge = roof.peak / roof.bandwidth,
      from = 10 ** xLow,
      to = 10 ** xHigh;
    const path = [
      [from, Math.min(from * roof.bandwidth, roof.peak)],
      [Math.min(Math.max(ridge, from), to), Math.min(Math.max(ridge, from) * roof.bandwidth, roof.peak)],
      [to, Math.min(roof.peak, to * roof.bandwidth)],
    ];
    return [
      svg("polyline", {
        class: "roof",
        points: path.map(([a, b]) => `${x(a!)},${Math.min(y(b!), TALL - BOTTOM)}`).join(" "),
      }),
      svg("text", { x: WIDE - 10, y: y(roof.peak) - 4, "text-anchor": "end" }, roof.label),
    ];
  });
  return svg(
    "svg",
    { viewBox: `0 0 ${WIDE} ${TALL}`, class: "roofline", role: "group", "aria-label": "roofline plot" },
    grid,
    lines.flat(),
    svg("text", { x: (WIDE + LEFT) / 2, y: TALL - 4, "text-anchor": "middle" }, "FLOP a byte"),
    svg("text", { x: LEFT + 6, y: 20 }, "FLOP/s"),
    dots.map((dot) =>
      svg(
        "a",
        { href: dot.href, "aria-label": dot.label },
        svg(
          "circle",
          { cx: x(dot.x), cy: y(dot.y), r: dot.size, fill: dot.colour, "fill-opacity": 0.8 },
          svg("title", {}, dot.label),
        ),
      ),
    ),
  );
}

function short(value: number): string {
  const [factor, unit] = SCALES.find(([one]) => value >= one) ?? [1, ""];
  return `${+(value / factor).toPrecision(3)}${unit}`;
}
