// Elements out of data: whatever comes from a recording is set as text, never as markup.
import { printable } from "./names.ts";

export type Child = Node | string | number | null | undefined | false | Child[];
type Value = string | number | boolean | null | undefined | ((event: never) => void) | Record<string, string>;

/** An element; `on…` properties are listeners, `style` and `data` are objects, `class` is its class. */
export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  properties: Record<string, Value> = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  return filled(document.createElement(tag), properties, children);
}

export function svg(tag: string, properties: Record<string, Value> = {}, ...children: Child[]): SVGElement {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), properties, children);
}

function filled<E extends HTMLElement | SVGElement>(
  element: E,
  properties: Record<string, Value>,
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
  return h("section", {}, h("header", {}, h("h2", {}, title), h("p", {}, about)), children);
}

/** A link to another place of the page. */
export const link = (href: string | null, text: Child, title?: string | null, kind = "door"): HTMLElement =>
  h("a", { class: kind, href, title }, text);

/** The same of a name as the program has it. */
export const monoLink = (href: string | null, text: Child, title?: string | null): HTMLElement =>
  link(href, text, title, "door mono");

export const soft = (...children: Child[]): HTMLElement => h("p", { class: "soft" }, children);

/** A colour's mark before what it stands for. */
export const swatch = (background: string): HTMLElement => h("span", { class: "dot", style: { background } });

/** A list of what there is. */
export const list = (kind: string | null, rows: Child[]): HTMLElement =>
  h(
    "ul",
    { class: kind },
    rows.map((row) => row && h("li", {}, row)),
  );

/** Copies on click, and says so. */
export function copyButton(text: string | (() => string), what: string, label = "copy"): HTMLButtonElement {
  const button = h(
    "button",
    { type: "button", class: "copy", "aria-label": `${label} ${what}`, onClick: () => void copy() },
    label,
  );
  const copy = async () => {
    const copied = typeof text === "string" ? text : text();
    try {
      await navigator.clipboard.writeText(copied);
    } catch {
      const area = h("textarea", {}, copied); // pages opened as files may have no clipboard
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    button.textContent = "copied";
    setTimeout(() => (button.textContent = label), 1200);
  };
  return button;
}
