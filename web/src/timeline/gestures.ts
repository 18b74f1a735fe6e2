// Mouse, wheel and fingers on the canvas, as what they mean.

export interface Meaning {
  pan(dx: number, dy: number): void;
  zoom(factor: number, x: number): void;
  hover(x: number, y: number): void;
  click(x: number, y: number): void;
  range(x0: number, x1: number, done: boolean): void;
  isSelecting(): boolean;
  /** Whether there is more than fits: else the wheel scrolls the page. */
  scrolls(): boolean;
}

const STILL = 4; // pixels that a click may move

export function gestures(canvas: HTMLCanvasElement, meaning: Meaning): void {
  const fingers = new Map<number, { x: number; y: number }>();
  let start: { x: number; y: number; selects: boolean } | null = null;
  let moved = false,
    apart = 0;
  const at = (event: PointerEvent | WheelEvent) => {
    const box = canvas.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };
  const spread = (): { apart: number; middle: number } => {
    const xs = [...fingers.values()].map(({ x }) => x);
    const low = Math.min(...xs),
      high = Math.max(...xs);
    return { apart: Math.max(high - low, 10), middle: (low + high) / 2 };
  };

  canvas.addEventListener("pointerdown", (event) => {
    if (event.button > 0) return;
    canvas.setPointerCapture(event.pointerId);
    const place = at(event);
    fingers.set(event.pointerId, place);
    moved = fingers.size > 1;
    if (fingers.size === 2) apart = spread().apart;
    start = { ...place, selects: event.shiftKey || meaning.isSelecting() };
  });
  canvas.addEventListener("pointermove", (event) => {
    const place = at(event),
      before = fingers.get(event.pointerId);
    if (!before || !start) return meaning.hover(place.x, place.y);
    fingers.set(event.pointerId, place);
    if (fingers.size === 2) {
      const now = spread();
      meaning.zoom(apart / now.apart, now.middle);
      meaning.pan((before.x - place.x) / 2, before.y - place.y);
      apart = now.apart;
      return;
    }
    moved ||= Math.hypot(place.x - start.x, place.y - start.y) > STILL;
    if (!moved) return;
    if (start.selects) meaning.range(start.x, place.x, false);
    else meaning.pan(before.x - place.x, before.y - place.y);
  });
  const up = (event: PointerEvent): void => {
    const place = at(event);
    if (fingers.delete(event.pointerId) && start && !fingers.size) {
      if (!moved) meaning.click(place.x, place.y);
      else if (start.selects) meaning.range(start.x, place.x, true);
      start = null;
    }
  };
  canvas.addEventListener("pointerup", up);
  canvas.addEventListener("pointercancel", (event) => fingers.delete(event.pointerId));
  canvas.addEventListener("pointerleave", () => meaning.hover(-1, -1));
  canvas.addEventListener(
    "wheel",
    (event) => {
      const isPlain = !event.ctrlKey && !event.metaKey && !event.shiftKey && !event.deltaX;
      if (isPlain && !meaning.scrolls()) return; // the page does
      event.preventDefault();
      const unit = event.deltaMode === 1 ? 16 : 1;
      if (event.ctrlKey || event.metaKey) meaning.zoom(Math.exp(event.deltaY * unit * 0.004), at(event).x);
      else if (event.shiftKey) meaning.pan((event.deltaY || event.deltaX) * unit, 0);
      else meaning.pan(event.deltaX * unit, event.deltaY * unit);
    },
    { passive: false },
  );
}
