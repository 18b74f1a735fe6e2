// Elements out of data: whatever comes from a recording is set as text, never as markup.
import { printable } from "./names.ts";

export type Child = Node | string | number | null | undefined | false | Child[];
type Value = string | number | boolean | null | undefined | ((event: never) => void) | Record<string, string>;
type Properties = Record<string, Value>;
type Tag = keyof HTMLElementTagNameMap;
type Kind = Tag | `${Tag}.${string}`;
type Made<T> = HTMLElementTagNameMap[T extends Tag
  ? T
  : T extends `${infer K extends Tag}.${string}`
    ? K
    : never];

/** An element, as `p` or `p.soft` with its class; `on…` properties are listeners, `style` and `data` are objects. */
export function h<T extends Kind>(tag: T, ...children: Child[]): Made<T>;
export function h<T extends Kind>(tag: T, properties: Properties, ...children: Child[]): Made<T>;
export function h<T extends Kind>(tag: T, ...given: (Properties | Child)[]): Made<T> {
  const [name, ...classes] = tag.split(".") as [Tag, ...string[]];
  const [first] = given;
  const isOwn =
    typeof first === "object" && first !== null && !Array.isArray(first) && !(first instanceof Node);
  const properties = { ...(classes.length && { class: classes.join(" ") }), ...(isOwn && first) };
  const children = (isOwn ? given.slice(1) : given) as Child[];
  return filled(document.createElement(name) as Made<T>, properties, children);
}

export function svg(tag: string, properties: Properties = {}, ...children: Child[]): SVGElement {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), properties, children);
}

function filled<E extends HTMLElement | SVGElement>(
  element: E,
  properties: Properties,
  children: Child[],
): E {
  for (const [key, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function")
      element.addEventListener(key.slice(2).toLowerCase(), value as EventListener);
    else if (key === "style")
      for (const [name, text] of Object.entries(value)) element.style.setProperty(name, text);
    else if (key === "data")
      for (const [name, text] of Object.entries(value)) element.dataset[name] = printable(text);
    else element.setAttribute(key, value === true ? "" : printable(String(value)));
  }
  append(element, children);
  return element;
}

export function append(element: Element, children: Child[]): void {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) append(element, child);
    else element.append(child instanceof Node ? child : printable(String(child)));
  }
}

export function fill(element: Element, ...children: Child[]): void {
  element.replaceChildren();
  append(element, children);
}

/** A section with its title, and a few words about it. */
export function titled(title: string, about: Child, ...children: Child[]): HTMLElement {
  return h("section", h("header", h("h2", title), h("p", about)), children);
}

/** A link to another place of the page. */
export const link = (href: string | null, text: Child, title?: string | null, kind = "door"): HTMLElement =>
  h("a", { class: kind, href, title }, text);

/** The same of a name as the program has it. */
export const monoLink = (href: string | null, text: Child, title?: string | null): HTMLElement =>
  link(href, text, title, "door mono");

/** A paragraph of one kind: `lead`, `note`, `soft`. */
export const para = (kind: string, ...children: Child[]): HTMLElement => h("p", { class: kind }, children);
export const soft = (...children: Child[]): HTMLElement => para("soft", ...children);

export const button = (
  label: Child,
  onClick: (event: MouseEvent) => void,
  more: Properties = {},
): HTMLButtonElement => h("button", { type: "button", ...more, onClick }, label);

/** Buttons side by side, of which the chosen one is pressed. */
export function choice(labels: readonly string[], choose: (at: number) => void): HTMLButtonElement[] {
  const press = (chosen: number): void =>
    buttons.forEach((one, at) => one.setAttribute("aria-pressed", String(at === chosen)));
  const buttons = labels.map((label, at) =>
    button(label, () => {
      press(at);
      choose(at);
    }),
  );
  press(0);
  return buttons;
}

/** Doors to the same part of the page, seen otherwise. */
export const chips = (about: string, ...children: Child[]): HTMLElement =>
  h("nav", { class: "chips", "aria-label": about }, children);
export const chip = (href: string, label: Child, isOn: boolean): HTMLElement =>
  h("a", { href, "aria-current": isOn && "true" }, label);

/** A dialog that a click next to it closes. */
export function dialog(label: string, kind: string, ...children: Child[]): HTMLDialogElement {
  const shown: HTMLDialogElement = h(
    "dialog",
    { class: kind, "aria-label": label, onClick: (event: Event) => event.target === shown && shown.close() },
    ...children,
  );
  return shown;
}

/** What is opened by a click on its title. */
export const folded = (title: Child, ...body: Child[]): HTMLDetailsElement =>
  h("details", h("summary", title), body);

/** What is written of a value that is known. */
export const given = <Value>(value: Value | null | undefined, write: (value: Value) => Child): Child =>
  value !== null && value !== undefined && write(value);

/** Terms with what is said of each; what is not known is left out. */
export const facts = (rows: [Child, Child][], kind = "facts"): HTMLElement =>
  h(
    "dl",
    { class: kind },
    rows
      .filter(([, value]) => value !== null && value !== undefined && value !== false && value !== "")
      .map(([label, value]) => [h("dt", label), h("dd", value)]),
  );

/** A colour's mark before what it stands for. */
export const swatch = (background: string): HTMLElement => h("span", { class: "dot", style: { background } });

/** A list of what there is. */
export function list(kind: string | null, rows: Child[], tag: "ul" | "ol" = "ul"): HTMLElement {
  const items = rows.map((row) => row && h("li", row));
  return h(tag, { class: kind }, items);
}

/** What follows each other, as calls around an event. */
export const chained = (rows: Child[]): HTMLElement => list("chain", rows, "ol");

/** What colours stand for, and what else is to be known of a drawing. */
export const legend = (marks: [colour: string, label: Child][], ...more: Child[]): HTMLElement =>
  list("legend", [...marks.map(([colour, label]) => [swatch(colour), label]), ...more]);

/** Copies on click, and says so. */
export function copyButton(text: string | (() => string), what: string, label = "copy"): HTMLButtonElement {
  const shown = button(label, () => void copy(), { class: "copy", "aria-label": `${label} ${what}` });
  const copy = async () => {
    const copied = typeof text === "string" ? text : text();
    try {
      await navigator.clipboard.writeText(copied);
    } catch {
      const area = h("textarea", copied); // pages opened as files may have no clipboard
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    shown.textContent = "copied";
    setTimeout(() => (shown.textContent = label), 1200);
  };
  return shown;
}
