// One colour a category, the same as in the terminal and the plots; the document brings them.
import type { Sentences } from "./document.ts";

const OTHER = "#8b93a1";
const HOST: Record<string, string> = {
  cpu_op: "#8fb3dd",
  cuda_runtime: "#b3bbc7",
  cuda_driver: "#b3bbc7",
  user_annotation: "#d8bd83",
  python_function: "#a9c3a4",
  overhead: "#d39a9a",
  gpu_user_annotation: "#d8bd83",
};

export class Palette {
  constructor(private readonly shown: Sentences) {}
  category = (name: string): string => this.shown.category_colours[name] ?? OTHER;
  use = (name: string): string =>
    name === "idle" ? "var(--track)" : (this.shown.use_colours[name] ?? OTHER);
  memory = (part: string): string => this.shown.memory_colours[part] ?? OTHER;
  cause = (name: string): string => this.shown.cause_colours[name] ?? OTHER;
  host = (kind: string): string => HOST[kind] ?? "#c3c9d2";
}
