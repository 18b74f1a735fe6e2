// The style sheet's colours, for what is drawn on the canvas.

export interface Inks {
  ink: string;
  soft: string;
  line: string;
  card: string;
  track: string;
  accent: string;
  bad: string;
  page: string;
}

export function inks(): Inks {
  const style = getComputedStyle(document.documentElement);
  const of = (name: string): string => style.getPropertyValue(`--${name}`).trim();
  return {
    ink: of("ink"),
    soft: of("soft"),
    line: of("line"),
    card: of("card"),
    track: of("track"),
    accent: of("accent"),
    bad: of("bad"),
    page: of("page"),
  };
}
