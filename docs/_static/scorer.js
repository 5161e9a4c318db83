// Pages that prove or record rank below pages that explain, and pages for contributors come last.
var Scorer = {
  score: ([docname, title, anchor, description, score]) =>
    /^contributing\/|\/architecture$/.test(docname) ? score / 100 : docname.startsWith("evidence/") ? score / 4 : score,
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};

// Of two pages with the same score the one in the earlier folder comes first.
const FOLDERS = ["start", "howto", "concepts", "operate", "recipes", "choose", "reference"];
const rank = ([docname]) => (FOLDERS.indexOf(docname.split("/")[0]) + FOLDERS.length + 1) % (FOLDERS.length + 1);

/** Return how much of the query, in percent, the words of each place in conf.py's ANSWERS cover in any order. */
function answered(query) {
  const stemmer = new Stemmer();
  const split = (text) => text.toLowerCase().match(/[\p{L}\p{N}_]{2,}/gu) || [];
  const stems = (words) => words.map((word) => stemmer.stemWord(word));
  const all = split(query);
  const asked = new Set(stems(all));
  const said = new Set(stems(all.filter((word) => !stopwords.has(word))));
  const covered = new Map();
  for (const [entry, places] of Object.entries(Search._index.indexentries)) {
    const words = stems(split(entry));
    if (!words.every((word) => asked.has(word))) continue;
    for (const [file, id, isMain] of places) {
      const place = `${file}#${id}`;
      if (isMain) covered.set(place, new Set([...(covered.get(place) || []), ...words]));
    }
  }
  // Words such as "how" and "my" count little: they decide between places that cover the same of the others.
  const share = (words, of) => [...words].filter((word) => of.has(word)).length / (of.size || 1);
  return new Map([...covered].map(([place, words]) => [place, 90 * share(words, said) + 10 * share(words, asked)]));
}

/** Return the pages with some of the words; a word on few pages says more than one on many. */
function withSome(words, excluded) {
  const found = new Map();
  for (const word of words) {
    const results = Search.performTermsSearch(new Set([word]), excluded);
    for (const result of results) {
      const points = Scorer.score(result) / results.length;
      const known = found.get(result[0]);
      if (known) known[4] += points;
      else found.set(result[0], [...result.slice(0, 4), points, ...result.slice(5)]);
    }
  }
  return [...found.values()];
}

// Sphinx only finds pages that contain every word. A page that answers half of the query is found all the same, and if
// no page has every word, those with some of them.
// This file is part of language_data.js, which is loaded after searchtools.js.
{
  const perform = Search._performSearch;
  Search._performSearch = (query, ...words) => {
    const { docnames, filenames, titles } = Search._index;
    const complete = perform(query, ...words);
    const results = complete.length > 0 ? complete : withSome(...words);
    for (const [place, points] of answered(query)) {
      const [file, id] = place.split("#");
      const anchor = id && `#${id}`;
      const found = results.filter((result) => result[0] === docnames[file] && result[2] === anchor);
      for (const result of found) result[4] += points;
      if (found.length === 0 && points >= 50) {
        results.push([docnames[file], titles[file], anchor, null, points, filenames[file], SearchResultKind.index]);
      }
    }
    return results.sort((one, other) => one[4] - other[4] || rank(other) - rank(one));
  };
}
