"""Plots of things that are lost or hidden, and found again."""

from relation.data.tales.notation import Plot

LOST = (
    Plot(
        "the lost gift",
        threads=("thing", "elder"),
        sleepers=("elder",),
        text="""
{intro}

On {his} birthday {elder}, {e_who}, gave {him} {a_thing}.
| One day {elder}, {e_who}, laid {a_thing} in {his} {hands}.
| {elder}, {e_who}, had kept {a_thing} in a drawer for years, and one day it became {hero}'s.
| "Close your eyes," said {elder}, {e_who}. When {hero} opened them, there was {a_thing} in front of
  {him}.

"It was mine when I was small," said {elder}. "Take good care of it."
| "Look after it," said {elder}, "and show it to me when I come to supper."
| "Do not lose it," said {elder}. "There is not another like it in the whole world."

{hero} promised, and from then on {he} took it everywhere.
| "I will never let it out of my sight," {said} {hero}.
| {hero} {smiled} and held it tight all day.
---
{Next_day}, {hero} {walked} {to_site} with it. {He} {play}.
| {Next_day}, {he} took it {to_site}. There was so much to do! {He} {play}.
| Not a week had passed when {hero} {walked} {to_site}. There {he} {play}, and {he} forgot the
  time.

When it was time to go home, the {thing} was gone.
| Then {he} stopped short. Where was the {thing}?
| On the way home {he} noticed that {his} {hands} were empty. The {thing} was not there any more.
| "Time to go," {he} told {himself}. But the {thing} was not where {he} had left it.

{hero} felt {worried}.
| "Oh no!" cried {hero}.
| {He} turned round and round, but it was no use.
|
--- way
{hero} searched {searched}.
| {He} went back and looked {searched}.
| {hero} searched {searched}, and then {he} did it all again.

"Have you seen {a_thing}?" {he} asked {neighbour} the {n_kind}.
| On the way {he} met {neighbour} the {n_kind}. "I am looking for {a_thing}," {he} said.
| "What are you looking for?" asked {neighbour} the {n_kind}. "For {a_thing}," said {hero}.

"No," said {neighbour}, "only {a_other_thing}, and that one is mine."
| {neighbour} thought hard. "I found {a_other_thing} this morning, but nothing else. I am sorry."
| "Would {a_other_thing} do as well?" asked {neighbour} kindly. {hero} had to say no.
--- way
{At_last} {he} heard {sound} {where}. {He} crept closer, and there lay the {thing}, a little dusty
but whole.
| {At_last} {he} sat down to rest {where}. Something was in the way. It was the {thing}!
| The sun was low when {hero} saw something {colour} {where}. {He} ran, knelt down and picked it
  up. There was not a scratch on it.
---
That evening {elder} came to supper. "Where is my old treasure?" asked {elder}.
| At the garden gate stood {elder}. "You look as if you had been in an adventure," {elder} said.
| {elder} was sitting on the doorstep when {hero} came home. "You are late," said {elder}.
| {He} ran straight to the house of {elder} and knocked. "What is the matter?" asked {elder}.

{hero} held up the {thing} and told the whole story.
| "I lost it, and I found it again," said {hero}, and put the {thing} on the table.
| "Here it is," said {hero}, a little out of breath, and showed the {thing}.

"{praise}," said {elder}.
| "Then it is truly yours now," said {elder}.
| "Lost things like to be looked for," said {elder}.
| {elder} did not scold at all. "I lost it too, once," {elder} said.

{coda}
""",
    ),
    Plot(
        "the hidden tin",
        threads=("thing", "landmark", "friend"),
        sleepers=("thing", "landmark", "friend"),
        text="""
{intro}

Together with {friend}, {a_trait} {f_kind}, {he} put {a_thing} into a tin one day and hid it
{where}.
| One day {hero} and {friend}, {a_trait} {f_kind}, packed {a_thing} into an old tin. They hid it
  {where}.
| {hero} and {his} friend {friend}, {a_trait} {f_kind}, owned {a_thing} between them. One day they
  shut it in a tin and hid it {where}.

"It must stay there until {event}," said {friend}. "Then it will be a real treasure."
| "Nobody may open it until {event}," said {friend}.
| "Let us take it out again when {event}," said {friend}. "Cross your heart!"
| "We will come back when {event}," said {friend}, "and not a day sooner."

They shook {hands} on it.
| They swore not to tell a soul.
| Then they smoothed out their footprints and ran home.
---
Time went by, and there was much to do. {hero} {chore}. {He} {pastime}.
| Days turned into weeks. {hero} {chore}, and soon {he} had forgotten all about the tin.
| At first {he} thought of the secret every hour, then once a day, and then not at all. {He}
  {chore}.
| A tin can keep quiet for a long time. {hero} {chore}, and {he} {pastime}, and the secret slept.
--- wait
One day {neighbour} the {n_kind} showed {him} {a_other_thing}. "Have you no treasure of your own?"
asked {neighbour}.
| "Look what I have got!" cried {neighbour} the {n_kind}, and waved {a_other_thing}. "I do not
  suppose that you have anything so fine."
| {neighbour} the {n_kind} had been given {a_other_thing} and would not let anyone touch it. "Get
  something of your own," said {neighbour}.

{hero} had the feeling that there was something {he} ought to remember. But what?
| "I think I have something," said {hero} slowly, "but I cannot say where it is."
| {hero} pricked up {his} ears, as if somebody had called {him}. But then it was gone again.
--- wait
Then {event_past}. {hero} stood quite still in the middle of the lane. "The tin!" {he} cried.
| At last {event_past}, and all at once {hero} remembered. {He} let everything drop and ran.
| {hero} hardly noticed it when {event_past}. But that night {he} sat up in bed. "Of course!" {he}
  shouted.
---
{friend} was already waiting {where}.
| They met {where}, {hero} from one side and {friend} from the other, both out of breath.
| {hero} ran into {friend} at the corner, and together they {walked} to the spot {where}.
| "I thought you would never come," said {friend}, who had lit a candle {where}.

The lid was stiff, but it came off. Inside was the {thing}, just as they had left it.
| They pulled and scraped until they had the tin. Out came the {thing}.
| With cold fingers they opened the tin, and there lay the {thing}.
| The tin had a little rust on it, but the {thing} inside was as {colour} as ever.

"It has waited for us," said {friend}.
| "I had forgotten it," said {hero}. "So had I," said {friend}, and they both laughed.
| "It looks even better than before," said {hero}.

{coda}
""",
    ),
    Plot(
        "the runaway pet",
        threads=("pet", "tag"),
        sleepers=("tag",),
        text="""
{intro}

{He} had {a_pet_kind} called {pet}, and it wore {a_tag} round its neck.
| At home {he} looked after {a_pet_kind} named {pet}. So that everyone would know it, {he} had tied
  {a_tag} round its neck.
| For {his} birthday {he} had been given {a_pet_kind} with {a_tag} round its neck. {hero} called it
  {pet}.

{pet} followed {him} everywhere, even to the bath.
| {pet} slept at the foot of {his} bed and snored.
| Nobody could make {hero} laugh like {pet}.
---
Then one day the gate stood open, and {pet} was gone.
| But one morning there was a hole in the fence, and no {pet} anywhere.
| Then came a morning when {hero} called and {pet} did not come.
| One night there was thunder, and in the morning the bed of {pet} was empty.

"{pet}! {pet}!" {he} shouted, and {he} looked {searched}.
| {hero} rattled the food bowl and called until {he} was hoarse.
| {hero} {walked} from door to door, but nobody had seen {pet}.
| {hero} drew a picture of {pet} and hung it on every tree.
--- way
"There is {a_pet_kind} {at_site}," said {neighbour} the {n_kind}.
| "I heard something {at_site}," said {neighbour} the {n_kind}. "It might be {a_pet_kind}."

{hero} rushed there, and {his} heart jumped. But this one wore {a_other_tag} and belonged to the
{passer}.
| {hero} {hurried} there as fast as {he} could. But round its neck was {a_other_tag}, and it did not
  know {him}.

"Keep looking," said {neighbour}. "It cannot be far."
| {hero} felt {worried}.
| {He} wiped {his} eyes and went on.
|
--- way
When evening came, {he} sat down {where} and scattered some {snack} on the ground. Then {he}
waited.
| {At_last} {he} found small footprints in the mud, and they ended {where}. {hero} knelt down and
  held {his} breath.
---
Out crept something so muddy that {hero} could not tell what it was. But round its neck hung
{a_tag}.
| There was {sound}. Two eyes blinked in the dark, and under them was {a_tag}, rather torn.
| Something bumped against {his} knee, something small with {a_tag}.
| First there was a nose, then two ears, and then {a_tag} with a knot that {hero} had tied.

"{pet}!" cried {hero}, and hugged it, mud and all.
| It was {pet}! {hero} laughed and cried at once.
| "You silly thing," {he} whispered. "Oh, {pet}, do not ever do that again!"

At home there was a warm bath for two.
| They had supper from the same plate, and nobody minded.
| {hero} mended the fence before {he} went to bed.
| "No more adventures," said {hero}, and shut the door.

{coda}
""",
    ),
    Plot(
        "the runaway boat",
        threads=("boat", "sail"),
        sleepers=("boat",),
        text="""
{intro}

With the help of {elder}, {e_who}, {he} built a little boat with {a_sail}, and on its side they
painted a name: the {boat}.
| {elder}, {e_who}, had made {him} a toy boat. It had {a_sail}, and its name, the {boat}, was
  written on its side.
| {hero} spent a whole week on a boat made of bark. When {he} had given it {a_sail}, {elder},
  {e_who}, helped {him} to write a name on its side: the {boat}.

"A boat needs a name," said {elder}, "or how will it know where it belongs?"
| "Now it can sail round the world," said {elder}.
| "May it always come home," said {elder}.
---
{hero} set it on the stream and held on to the string. But the knot came loose.
| The first trip went well, and the second one too. On the third, the string broke.
| {Next_day} {hero} carried it down to the stream. The current was stronger than {he} had thought,
  and the string slipped away.

Off it went, past the stones and round the bend. {hero} ran along the bank.
| "Come back!" cried {hero}, but a boat has no ears.
| The last {he} saw of it was the {sail} between the reeds.
| It bobbed, it turned, and it was gone. {hero} threw down the useless string.
--- way
"Have you seen a boat?" {he} asked {neighbour} the {n_kind}.
| {neighbour} the {n_kind} was fishing from a footbridge. "Did a boat come by?" asked {hero}.
| On the bank dozed {neighbour} the {n_kind}. "Wake up!" cried {hero}. "Have you seen my boat?"

"One with {a_other_sail}, yes," said {neighbour}. {hero} shook {his} head. That was the wrong one.
| "Only the one in my net," said {neighbour}. But that one had {a_other_sail} and a hole in it.
| "I have been counting boats," said {neighbour}. "So far there was only one, with {a_other_sail}."
  It was somebody else's.

{hero} felt {worried}.
| "Then I must go on," said {hero}, and thanked {neighbour}.
| "Everything that floats gets stuck sooner or later," said {neighbour}, and that was a comfort.
|
--- way
The stream grew wider and slower. {hero} {walked} on until {his} legs ached.
| {He} passed the mill and the weir and the washing place. {He} had never come so far.
| The sun sank, and frogs began to sing. {hero} almost turned back.
| Brambles tore at {his} clothes, and mud sucked at {his} boots, but {he} did not give up.
---
There, {waterside}, stood {friend}, {a_trait} {f_kind}, with a boat under one arm. It had {a_sail}.
| Then {he} saw a small light {waterside}. {friend}, {a_trait} {f_kind}, was drying {a_sail} over a
  fire.
| "Is this yours?" somebody called. It was {friend}, {a_trait} {f_kind}, who had caught something
  with {a_sail} {waterside}.

"What is it called?" asked {friend}, to be sure. "It is the {boat}," said {hero}, and so it was.
| "On its side it says the {boat}," said {friend}, "but not whose it is." "It is mine," said
  {hero}.
| {hero} turned it over. There was the name, a little scratched: the {boat}.

They tied a new knot together, and it held.
| From that day on they sailed it together.
| {friend} lived close by, and so {hero} came home with a boat and a friend.
| "You may be the captain on Sundays," said {hero}, and {friend} saluted.

{coda}
""",
    ),
)
