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

/** Return the share of the query, in percent, that the words of each place in conf.py's ANSWERS cover in any order. */
function answered(query) {
  const stemmer = new Stemmer();
  const stems = (text) => (text.toLowerCase().match(/[\p{L}\p{N}_]+/gu) || []).map((word) => stemmer.stemWord(word));
  const asked = new Set(stems(query));
  const covered = new Map();
  for (const [entry, places] of Object.entries(Search._index.indexentries)) {
    const words = stems(entry);
    if (!words.every((word) => asked.has(word))) continue;
    for (const [file, id, isMain] of places) {
      const place = `${file}#${id}`;
      if (isMain) covered.set(place, new Set([...(covered.get(place) || []), ...words]));
    }
  }
  return new Map([...covered].map(([place, words]) => [place, (100 * words.size) / asked.size]));
}

// Sphinx only finds pages that contain every word. A page that answers half of the query is found all the same.
// This file is part of language_data.js, which is loaded after searchtools.js.
{
  const perform = Search._performSearch;
  Search._performSearch = (query, ...words) => {
    const { docnames, filenames, titles } = Search._index;
    const results = perform(query, ...words);
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
