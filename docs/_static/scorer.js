// Pages that prove or record rank below pages that explain.
var Scorer = {
  score: ([docname, title, anchor, description, score]) =>
    /^(evidence|contributing)\//.test(docname) ? score / 4 : score,
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
