// What was held over time, by role, on top of each other; what was reserved as a line above.
import type { App } from "../app.ts";
import type { MemoryPeak, MemorySample } from "../document.ts";
import { fill, h, legend, svg } from "../dom.ts";
import { say } from "../canvas.ts";
import * as numbers from "../numbers.ts";
import { pictured, ticks } from "../plot.ts";
import { instant } from "./instant.ts";

const WIDE = 1000,
  TALL = 100,
  IDLE = "idle in private pools",
  NOBODYS = "no tensor has it, and none of other pools can";

type Layer = [name: string, colour: string, bytes: (sample: MemorySample) => number];

/** A round number of bytes, of which two to five fit below `most`. */
export function tick(most: number): number {
  const power = 10 ** Math.floor(Math.log10(Math.max(most, 1) / 2));
  return [5, 2, 1].map((one) => one * power).find((one) => most / one >= 2) ?? power;
}

/** The curve; a click, or the slider below it, shows who had the memory at that moment. */
export function area(
  app: App,
  peak: MemoryPeak,
  chosen: number | null,
  choose: (at: number) => void,
): HTMLElement {
  const samples = peak.over_time;
  const hasReserved = peak.moment !== "timeline";
  const most = Math.max(...samples.map((one) => one.reserved_bytes), peak.reserved_bytes, 1);
  const whole = peak.history_us || 1;
  const x = (us: number) => ((WIDE * us) / whole).toFixed(1);
  const y = (bytes: number) => (TALL - (TALL * bytes) / most).toFixed(2);
  const until = (at: number) => samples[at + 1]?.time_us ?? whole;
  const along = (of: (at: number) => number): string[] =>
    samples.flatMap((one, at) => [`${x(one.time_us)},${y(of(at))}`, `${x(until(at))},${y(of(at))}`]);
  const all: Layer[] = [
    ...peak.roles.map((role, place): Layer => [role, app.palette.memory(role), (one) => one.bytes[place]!]),
    [IDLE, app.palette.memory("cached"), (one): number => one.idle_in_pools_bytes],
  ];
  const layers = all.filter(([, , bytes]) => samples.some((one) => bytes(one) > 0));
  const below = samples.map(() => 0);
  const bands = layers.map(([, fill, bytes]) => {
    const bottom = along((at) => below[at]!).reverse();
    samples.forEach((one, at) => (below[at]! += bytes(one)));
    return svg("polygon", { points: [...along((at) => below[at]!), ...bottom].join(" "), fill });
  });
  const line = (of: (at: number) => number, name: string) =>
    svg("polyline", { class: name, points: along(of).join(" "), "vector-effect": "non-scaling-stroke" });
  const step = tick(most);
  const marks = Array.from({ length: Math.floor(most / step) }, (_, at) => (at + 1) * step);
  const at = Math.min((100 * peak.peak_us) / whole, 100);
  const hint = h("div", { class: "hint", hidden: true });
  const mark = h("span", { class: "moment", hidden: true });
  const drawn = h(
    "div",
    {
      class: "area",
      onPointermove: (event: PointerEvent) => tell(event),
      onPointerleave: () => (hint.hidden = true),
      onClick: (event: PointerEvent) => peak.blocks.length > 0 && show(sampleAt(event)),
    },
    svg(
      "svg",
      pictured(`memory over time by role, at most ${numbers.size(peak.requested_bytes)} held`, WIDE, TALL),
      bands,
      marks.map((bytes) => {
        const at = { x1: 0, x2: WIDE, y1: y(bytes), y2: y(bytes) };
        return svg("line", { class: "grid", ...at, "vector-effect": "non-scaling-stroke" });
      }),
      hasReserved && line((at) => samples[at]!.reserved_bytes, "reserved"),
    ),
    marks.map((bytes) => h("span", { class: "mark", style: { top: `${y(bytes)}%` } }, numbers.size(bytes))),
    h(
      "span",
      { class: `peak ${at > 50 ? "left" : ""}`, style: { left: `${at}%` } },
      h("b", `${peak.failed_bytes === null ? "peak" : "failed at"} ${numbers.size(peak.requested_bytes)}`),
    ),
    mark,
    hint,
  );
  const last = (time: number) => Math.max(0, samples.findLastIndex((one) => one.time_us <= time)); // prettier-ignore
  const panel = h("div", { "aria-live": "polite" });
  const slider = h("input", {
    type: "range",
    "aria-label": "a moment of the history",
    max: samples.length - 1,
    value: last(peak.peak_us),
    onInput: () => show(Number(slider.value)),
  });
  const show = (at: number): void => {
    slider.value = String(at);
    mark.hidden = false;
    mark.style.left = `${(100 * samples[at]!.time_us) / whole}%`;
    fill(panel, instant(app, peak, at));
    choose(at);
  };
  const sampleAt = (event: PointerEvent): number => {
    const box = drawn.getBoundingClientRect();
    return last(((event.clientX - box.left) / box.width) * whole);
  };
  if (chosen !== null && samples[chosen]) show(chosen);
  const tell = (event: PointerEvent): void => {
    const box = drawn.getBoundingClientRect();
    const sample = samples[sampleAt(event)]!;
    const parts = layers
      .filter(([, , bytes]) => bytes(sample) > 0)
      .map(([name, , bytes]) => `${name} ${numbers.size(bytes(sample))}`);
    const reserved = hasReserved ? `; reserved ${numbers.size(sample.reserved_bytes)}` : "";
    const text = `${numbers.time(sample.time_us)}: ${parts.join(", ")}${reserved}`;
    const y = Math.min(event.clientY - box.top, box.height * 0.6);
    say({ hint, width: () => box.width }, text, event.clientX - box.left, y);
  };
  return h(
    "figure",
    drawn,
    ticks(whole, numbers.time),
    legend(
      layers.map(([name, colour]) => [colour, name === IDLE ? `${IDLE}: ${NOBODYS}` : name]),
      hasReserved && [h("span.dash"), "reserved"],
    ),
    peak.blocks.length > 0 && [h("label.instant", "Who had it at another moment: click, or ", slider), panel],
  );
}
