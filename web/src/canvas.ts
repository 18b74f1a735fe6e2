// A canvas as wide as its place, drawn anew when that, or light and dark, changes.
import { h } from "./dom.ts";

export interface Painted {
  canvas: HTMLCanvasElement;
  element: HTMLElement;
  hint: HTMLElement;
  width: () => number;
  draw: () => void;
}

const HINT = 14; // pixels between the pointer and what is said there

/** What `paint` draws, in CSS pixels; `label` is what those hear who do not see it. */
export function painted(
  label: string,
  height: number,
  paint: (context: CanvasRenderingContext2D, width: number) => void,
): Painted {
  const canvas = h("canvas", { tabindex: "0", role: "img", "aria-label": label });
  const hint = h("div", { class: "hint", hidden: true });
  const element = h("div", { class: "painted", style: { height: `${height}px` } }, canvas, hint);
  const width = (): number => element.clientWidth;
  const draw = (): void => {
    if (!element.isConnected || !width()) return;
    const scale = devicePixelRatio || 1;
    canvas.width = Math.round(width() * scale);
    canvas.height = Math.round(height * scale);
    const context = canvas.getContext("2d")!;
    context.scale(scale, scale);
    context.font = "11px system-ui, sans-serif";
    paint(context, width());
  };
  new ResizeObserver(draw).observe(element);
  const scheme = matchMedia("(prefers-color-scheme: dark)");
  const again = (): void => {
    if (element.isConnected) draw();
    else scheme.removeEventListener("change", again);
  };
  scheme.addEventListener("change", again);
  return { canvas, element, hint, width, draw };
}

/** Where a pointer is, in CSS pixels of the canvas. */
export const at = (event: PointerEvent | MouseEvent): [number, number] => [event.offsetX, event.offsetY];

/** Says under the pointer what `text` has for its place, and nothing once it has left. */
export function hovered(shown: Painted, text: (x: number, y: number) => string | null): void {
  shown.canvas.addEventListener("pointermove", (event) => say(shown, text(...at(event)), ...at(event)));
  shown.canvas.addEventListener("pointerleave", () => say(shown, null, 0, 0));
}

/** Shows a hint next to a point of a drawing; null hides it. */
export function say(
  { hint, width }: Pick<Painted, "hint" | "width">,
  text: string | null,
  x: number,
  y: number,
): void {
  hint.hidden = text === null;
  hint.textContent = text;
  const isRight = x > width() / 2;
  hint.classList.toggle("left", isRight);
  hint.style.left = `${isRight ? x - HINT : x + HINT}px`;
  hint.style.top = `${y + HINT}px`;
}

const INKS = ["ink", "soft", "line", "card", "track", "accent", "bad", "page"] as const;
export type Inks = Record<(typeof INKS)[number], string>;

/** The style sheet's colours, for what is drawn on a canvas. */
export function inks(): Inks {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(INKS.map((name) => [name, style.getPropertyValue(`--${name}`).trim()])) as Inks;
}
