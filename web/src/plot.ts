// Small plots as SVG: histograms, bars, curves, the roofline.
import { h, svg, type Child } from "./dom.ts";
import * as numbers from "./numbers.ts";

export interface Part {
  label: string;
  share: number;
  colour: string;
  /** Nothing ran: hatched, whatever its colour. */
  idle?: boolean;
}

/** One line of bar. */
export function bar(label: string, parts: Part[], thin = false): HTMLElement {
  return h(
    "div",
    { class: thin ? "bar thin" : "bar", role: "group", "aria-label": label },
    parts
      .filter((part) => part.share > 0)
      .map((part) =>
        h("span", {
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
  values: Float64Array,
  bins: number,
): { counts: number[]; low: number; high: number } {
  const high = values.reduce((most, one) => Math.max(most, one), 0);
  const low = Math.max(
    values.reduce((least, one) => Math.min(least, one), Infinity),
    1e-3,
  );
  const counts = new Array<number>(bins).fill(0);
  const width = Math.log(Math.max(high / low, 1.0001)) / bins;
  for (const one of values)
    counts[Math.min(bins - 1, Math.max(0, Math.floor(Math.log(one / low) / width)))]!++;
  return { counts, low, high };
}

/** What an SVG says of itself, which is stretched to its place. */
export const pictured = (label: string, width: number, height: number) => ({
  ...{ viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img" },
  "aria-label": label,
});

type Spark = [counts: number[], colour: string, label: string, width?: number, height?: number];

export function sparkline(...[counts, colour, label, width = 72, height = 18]: Spark): SVGElement {
  const most = Math.max(...counts, 1),
    step = width / counts.length;
  return svg(
    "svg",
    { ...pictured(label, width, height), width, height, class: "spark" },
    counts.map((count, at) => {
      const tall = count ? Math.max(1.5, (count / most) * height) : 0;
      const size = { width: Math.max(step - 0.6, 0.6), height: tall };
      return svg("rect", { x: at * step, y: height - tall, ...size, fill: colour });
    }),
  );
}

/** A curve over time in microseconds; the y axis begins at 0. */
export function curve(label: string, values: [us: number, value: number][], about: Child): Child {
  if (values.length < 2) return null;
  const most = Math.max(...values.map(([, value]) => value), 1e-9),
    [from] = values[0]!,
    width = values.at(-1)![0] - from || 1;
  const points = values.flatMap(([start, value], at) => {
    const y = (98 - (96 * value) / most).toFixed(1); // it holds until the next one
    const end = values[at + 1]?.[0] ?? start;
    return [start, end].map((x) => `${((1000 * (x - from)) / width).toFixed(1)},${y}`);
  });
  return h(
    "figure.curve",
    svg(
      "svg",
      pictured(label, 1000, 100),
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
  const powers = (low: number, high: number) =>
    Array.from({ length: high - low + 1 }, (_, at) => 10 ** (low + at));
  const line = (...[x1, x2, y1, y2]: number[]) => svg("line", { class: "grid", x1, x2, y1, y2 });
  const write = (text: string, x: number, y: number, anchor: string) =>
    svg("text", { x, y, "text-anchor": anchor }, text);
  const down = powers(xLow, xHigh).map((value) => [
    line(x(value), x(value), 8, TALL - BOTTOM),
    write(short(value), x(value), TALL - BOTTOM + 14, "middle"),
  ]);
  const across = powers(yLow, yHigh).map((value) => [
    line(LEFT, WIDE - 8, y(value), y(value)),
    write(short(value), LEFT - 5, y(value) + 4, "end"),
  ]);
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
      write(roof.label, WIDE - 10, y(roof.peak) - 4, "end"),
    ];
  });
  return svg(
    "svg",
    { viewBox: `0 0 ${WIDE} ${TALL}`, class: "roofline", role: "group", "aria-label": "roofline plot" },
    down,
    across,
    lines,
    write("FLOP a byte", (WIDE + LEFT) / 2, TALL - 4, "middle"),
    svg("text", { x: LEFT + 6, y: 20 }, "FLOP/s"),
    dots.map((dot) => {
      const look = { cx: x(dot.x), cy: y(dot.y), r: dot.size, fill: dot.colour, "fill-opacity": 0.8 };
      const drawn = svg("circle", look, svg("title", {}, dot.label));
      return svg("a", { href: dot.href, "aria-label": dot.label }, drawn);
    }),
  );
}

function short(value: number): string {
  const [factor, unit] = SCALES.find(([one]) => value >= one) ?? [1, ""];
  return `${+(value / factor).toPrecision(3)}${unit}`;
}
